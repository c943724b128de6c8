"""Rules, matching, growing and replacing: pure Python, no CUDA, no ONNX Runtime."""
