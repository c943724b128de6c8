"""Running sums along an axis, with surrounding pointwise work."""
