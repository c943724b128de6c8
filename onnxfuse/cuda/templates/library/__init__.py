"""ONNX Runtime's own ops, without kernels of ours."""
