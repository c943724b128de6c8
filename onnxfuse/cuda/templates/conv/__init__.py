"""Sliding windows over images: convolution, pooling and resizing on CUDA cores, few-channel convolution on tensor
cores."""
