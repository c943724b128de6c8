"""`python -m onnxfuse` is `onnxfuse`."""

from onnxfuse.cli import main

main()
