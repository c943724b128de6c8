"""Operators that are written as others while the model is optimized."""
