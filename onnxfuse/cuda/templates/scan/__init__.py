"""Running sums along an axis, and what is pointwise around them."""
