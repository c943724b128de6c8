"""Concatenated outputs: each part is written in place by the template of its own."""
