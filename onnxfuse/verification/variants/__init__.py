"""Variants of the original that show how much rounding can change its results."""
