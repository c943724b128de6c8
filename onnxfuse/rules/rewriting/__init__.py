"""Apply rewrite rules everywhere until nothing changes."""
