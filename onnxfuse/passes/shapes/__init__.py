"""Passes on shape computations, reshape targets and extents."""
