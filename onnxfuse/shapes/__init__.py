"""Types and shapes of values: ONNX's shape inference, and its refinements."""
