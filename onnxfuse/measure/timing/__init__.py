"""The stopwatch, ONNX Runtime's settings, sessions bound to a device, and the facts of the machine."""
