"""Variants of the original that show how far rounding moves its results."""
