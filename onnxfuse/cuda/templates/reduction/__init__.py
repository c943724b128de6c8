"""Reductions along rows and columns, with surrounding pointwise work."""
