"""Ops of ONNX Runtime's own: no kernels."""
