"""Rules: the pattern language, matching, the rule files, and rewriting to a fixed point."""
