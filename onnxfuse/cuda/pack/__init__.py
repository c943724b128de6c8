"""Kernel packs: the launch programs and compiled kernels of a model in one file (docs/KERNEL_PACK.md)."""
