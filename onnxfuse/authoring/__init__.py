"""List, test and derive rules."""
