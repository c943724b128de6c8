"""The report of a verification, and its rows."""
