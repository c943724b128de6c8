"""Settings that hold for everything that a call does: links that may be followed, and libraries of operators."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def settings(*, follow_links: bool = False, custom_ops: Sequence[str | Path] = ()) -> Iterator[None]:
    """Let the block follow links to external data outside the model's folder, and load these libraries of operators.

    Raises UsageError for a library that is not a file.
    """
    with ExitStack() as entered:
        if follow_links:
            from onnxfuse.files.external import following_links  # ONNX is imported where a model is read

            entered.enter_context(following_links())
        if custom_ops:
            from onnxfuse.model.custom_ops import using

            entered.enter_context(using(custom_ops))
        yield


def active_settings() -> dict[str, Any]:
    """Return the settings that hold here, by the names of their options."""
    from onnxfuse.files.external import follows_links  # ONNX is imported where a model is read
    from onnxfuse.model.custom_ops import libraries

    return {"follow_links": follows_links(), "custom_ops": tuple(map(os.path.relpath, libraries()))}
