"""Match a pattern at a node, explain refusals, and build replacements."""
