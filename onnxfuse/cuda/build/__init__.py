"""Compilation and loading of kernels: NVRTC, and the cache of compiled kernels."""
