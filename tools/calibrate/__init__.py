"""Measures the costs of a card and writes them as `onnxfuse/cuda/costs/ARCH.toml`; `__main__.py` is the command."""
