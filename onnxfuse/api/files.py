"""Files that are written beside a model: looked at before the work starts, and told of where it cannot be done."""

import os
from pathlib import Path

from onnxfuse.model import io
from onnxfuse.model.errors import ModelError


def writable(target: Path) -> None:
    """Raise ModelError where `target` is a folder, or stands in none."""
    # Not Path.is_dir, which raises where the system does not take the name; that is told when it is written.
    if os.path.isdir(target):
        raise ModelError(f"{target}: is a directory", "Give the name of the file to write.")
    if not os.path.isdir(target.parent):
        raise ModelError(f"{target}: the folder {target.parent} does not exist", "Create it first.")


def write_text(path: Path, text: str, *, add: bool = False) -> None:
    """Write `text` to `path` whole or not at all, or add it there; raises ModelError where that cannot be done."""
    if not add:
        io.write_text(path, text)
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror}", "Check the folder's permissions.") from None
