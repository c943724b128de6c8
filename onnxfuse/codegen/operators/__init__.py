"""Semantics of ONNX operators in the typed program."""
