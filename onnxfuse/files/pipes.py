"""Named pipes and shell process substitutions, `<(...)`: read or write, or report that no process is at the other end.

Opening a pipe blocks until its other end is opened, forever if that never happens.
"""

import errno
import os
import select
import time
from pathlib import Path
from typing import BinaryIO

from onnxfuse.support.errors import ModelError

PATIENCE = 5.0
"""Seconds in which somebody must be at the other end of a pipe. What then comes may take as long as it likes."""

AT_ONCE = 1 << 20
"""Bytes."""


def read(path: Path, limit: int) -> bytes:
    """Return all that comes through the pipe. Raises ModelError where nobody writes to it, or more than `limit`."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        data = _begun(handle)
        os.set_blocking(handle, True)
        parts, length = [data], len(data)
        while data := os.read(handle, AT_ONCE):
            parts.append(data)
            length += len(data)
            if length >= limit:
                raise ModelError(
                    f"{path}: is a pipe through which more than {limit / 1e9:.1f} GB come, which no .onnx file has",
                    "Give an .onnx file.",
                )
    finally:
        os.close(handle)
    if not length:
        raise ModelError(
            f"{path}: is a pipe, and nobody writes to it",
            "A pipe is read once, and some commands read a model again: write it to a file, and give that.",
        )
    return b"".join(parts)


def _begun(handle: int) -> bytes:
    """Return the first of what comes; empty where it takes long, or nobody is there to write."""
    coming = select.poll()
    coming.register(handle, select.POLLIN)  # that a writer has left is told, too
    coming.poll(PATIENCE * 1000)
    try:
        return os.read(handle, AT_ONCE)
    except BlockingIOError:  # somebody is there, and thinks
        return b""


def writing(path: Path) -> BinaryIO:
    """Return what is no regular file, opened to be written. Raises ModelError for a pipe that nobody reads."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
        else:
            os.set_blocking(handle, True)
            return os.fdopen(handle, "wb")
        if time.monotonic() > end:
            raise ModelError(f"{path}: is a pipe, and nobody reads it", "Read it, or name a file to write.")
        time.sleep(0.01)
