"""Check output paths before the work starts, so that unwritable ones are reported early."""

import contextlib
import os
from pathlib import Path

from onnxfuse.files.atomic_write import as_model_error
from onnxfuse.support.errors import ModelError


def writable(target: Path) -> None:
    """Raise ModelError if `target` is a directory, has no parent directory, or has a name that the system rejects."""
    # Not Path.is_dir, which raises for names that the system rejects; those are reported on writing.
    if os.path.isdir(target):
        raise ModelError(f"{target}: is a directory", "Give the name of the file to write.")
    if not os.path.isdir(target.parent):
        raise ModelError(f"{target}: the folder {target.parent} does not exist", "Create it first.")
    with as_model_error(target), contextlib.suppress(FileNotFoundError):
        os.lstat(target)
