"""Verify, time and profile models, and hold a repository to its contract."""
