"""Reductions along rows and columns, and what is pointwise around them."""
