"""Fused ops of each template with shapes and inputs: what kernels are tested and timed on."""
