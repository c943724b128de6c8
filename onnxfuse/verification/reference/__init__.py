"""Reference results in float64, cross-checked against ONNX Runtime."""
