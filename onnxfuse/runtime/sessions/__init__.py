"""ONNX Runtime sessions in which fused kernels run."""
