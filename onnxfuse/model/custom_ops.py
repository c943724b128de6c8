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
"""What to do about an operator that nobody knows."""

HINT = "It is a shared library with RegisterCustomOps, as onnxruntime.SessionOptions.register_custom_ops_library takes."

KNOWN_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft",
     "com.microsoft.nchwc", "com.microsoft.experimental", "com.ms.internal.nhwc", "org.pytorch.aten", "onnxfuse"}
)  # fmt: skip
"""Whose operators ONNX, ONNX Runtime and we define: libraries bring those of other domains."""

_libraries: ContextVar[tuple[Path, ...]] = ContextVar("custom_ops", default=())


@contextlib.contextmanager
def using(given: Sequence[str | Path]) -> Iterator[None]:
    """Within the block, sessions load these libraries, too. Raises UsageError for one that is no file."""
    token = _libraries.set(tuple(dict.fromkeys((*_libraries.get(), *library_paths(given)))))
    try:
        yield
    finally:
        _libraries.reset(token)


def library_paths(given: Sequence[str | Path]) -> tuple[Path, ...]:
    """Return the whole paths of libraries; without a folder the system would look for them elsewhere.

    Raises UsageError for one that is no file.
    """
    for library in given:
        if not Path(library).is_file():
            raise UsageError(f"--custom-ops {library}: no such file", HINT)
    return tuple(Path(os.path.abspath(library)) for library in given)


def libraries() -> tuple[Path, ...]:
    """Return the libraries that sessions load here."""
    return _libraries.get()


def again() -> str:
    """Return what a command has to be given so that it loads the same libraries."""
    return "".join(f" --custom-ops {os.path.relpath(library)}" for library in libraries())


def is_custom(node: onnx.NodeProto) -> bool:
    """Return whether a node may be an operator of such a library: of a domain that only these have.

    A call of a function of the model looks the same.
    """
    return bool(_libraries.get()) and node.domain not in KNOWN_DOMAINS
