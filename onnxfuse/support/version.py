"""The version of onnxfuse."""

VERSION = "0.1.0"
"""That of pyproject.toml."""
