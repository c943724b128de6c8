"""Types and shapes of values: ONNX's inference, and what refines it."""
