"""Apply rewrite rules to a fixed point."""
