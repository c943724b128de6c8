"""Verify, benchmark and profile models, and check a repository against its contract."""
