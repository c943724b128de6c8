"""From the text of a kernel to a loaded one: NVRTC and the cache of compiled kernels."""
