"""Patterns, and the expressions in them."""
