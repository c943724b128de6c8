"""Kernels of dynamic quantization: the range of a value, then its elements in 8 bits."""
