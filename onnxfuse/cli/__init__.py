"""The command line: one file per command; each parses, calls and prints."""

from onnxfuse.cli.main import main

__all__ = ["main"]
