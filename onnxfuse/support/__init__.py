"""Helpers that know nothing of ONNX: errors, text, JSON, child processes."""
