"""Read, validate and annotate ONNX models; the only package that changes protobuf messages wholesale."""
