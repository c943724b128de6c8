"""Rewrite and fusion rules: the pattern language, matching, rule files, and rewriting to a fixed point."""
