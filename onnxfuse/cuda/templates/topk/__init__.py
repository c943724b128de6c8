"""The first k elements of rows by their values, with the pointwise work before."""
