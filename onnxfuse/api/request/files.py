"""Files that are written beside a model: looked at before the work starts, and told of where it cannot be done."""

import contextlib
import os
from pathlib import Path

from onnxfuse.files.atomic_write import as_model_error
from onnxfuse.support.errors import ModelError


def writable(target: Path) -> None:
    """Raise ModelError where `target` is a folder, stands in none, or has a name that the system does not take."""
    # Not Path.is_dir, which raises where the system does not take the name; that is told when it is written.
    if os.path.isdir(target):
        raise ModelError(f"{target}: is a directory", "Give the name of the file to write.")
    if not os.path.isdir(target.parent):
        raise ModelError(f"{target}: the folder {target.parent} does not exist", "Create it first.")
    with as_model_error(target), contextlib.suppress(FileNotFoundError):
        os.lstat(target)
