"""Reference results in float64, and ONNX Runtime as a check on them."""
