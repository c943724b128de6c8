"""Softmax-weighted products: queries, keys and values in one kernel."""
