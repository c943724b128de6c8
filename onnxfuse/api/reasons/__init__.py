"""Remaining ops, near misses and estimated costs."""
