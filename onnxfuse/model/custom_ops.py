"""Custom-op libraries (`--custom-ops`): every session opened within the block loads them.

A library is executable code: it is loaded only where the caller names it, never because a model or a settings file
does.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

import onnx

from onnxfuse.support.errors import UsageError

NAME_IT = "Name the library that has it: --custom-ops LIBRARY.so (in Python custom_ops=['LIBRARY.so'])."
"""Hint for an unknown operator."""

HINT = "It is a shared library with RegisterCustomOps, as onnxruntime.SessionOptions.register_custom_ops_library takes."

KNOWN_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft",
     "com.microsoft.nchwc", "com.microsoft.experimental", "com.ms.internal.nhwc", "org.pytorch.aten", "onnxfuse"}
)  # fmt: skip
"""Domains defined by ONNX, ONNX Runtime and onnxfuse: custom-op libraries define operators in other domains."""

_libraries: ContextVar[tuple[Path, ...]] = ContextVar("custom_ops", default=())


@contextlib.contextmanager
def using(paths: Sequence[str | Path]) -> Iterator[None]:
    """Load these libraries into sessions within the `with` block. Raises UsageError for a path that is not a file."""
    token = _libraries.set(tuple(dict.fromkeys((*_libraries.get(), *library_paths(paths)))))
    try:
        yield
    finally:
        _libraries.reset(token)


def library_paths(paths: Sequence[str | Path]) -> tuple[Path, ...]:
    """Return the absolute paths of libraries; the loader would search for a bare name elsewhere.

    Raises UsageError for a path that is not a file.
    """
    for library in paths:
        if not Path(library).is_file():
            raise UsageError(f"--custom-ops {library}: no such file", HINT)
    return tuple(Path(os.path.abspath(library)) for library in paths)


def libraries() -> tuple[Path, ...]:
    """Return the active libraries."""
    return _libraries.get()


def custom_ops_arguments() -> str:
    """Return the command-line arguments that load the same libraries."""
    return "".join(f" --custom-ops {os.path.relpath(library)}" for library in libraries())


def is_custom(node: onnx.NodeProto) -> bool:
    """Return whether a node may be an operator of a custom library: its domain is not a known one.

    A call of a model-local function looks the same.
    """
    return bool(_libraries.get()) and node.domain not in KNOWN_DOMAINS
