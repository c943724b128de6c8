"""What each ONNX operator means in the typed program."""
