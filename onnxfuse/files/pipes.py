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
"""Timeout in seconds for the other end of a pipe to open. Data transfer afterwards has no timeout."""

AT_ONCE = 1 << 20
"""Bytes per read."""


def read(path: Path, limit: int) -> bytes:
    """Return all data from the pipe. Raises ModelError if it has no writer, or delivers more than `limit`."""
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
                    f"{path}: is a pipe through which more than {limit / 1e9:.1f} GB come, more than any .onnx file "
                    "has",
                    "Give an .onnx file.",
                )
    finally:
        os.close(handle)
    if not length:
        raise ModelError(
            f"{path}: is a pipe that no process writes to",
            "A pipe can be read only once, and some commands read a model twice: write it to a file, and name that.",
        )
    return b"".join(parts)


def _begun(handle: int) -> bytes:
    """Return the first chunk; empty on timeout, or if there is no writer."""
    coming = select.poll()
    coming.register(handle, select.POLLIN)  # a hangup is reported, too
    coming.poll(PATIENCE * 1000)
    try:
        return os.read(handle, AT_ONCE)
    except BlockingIOError:  # a writer is connected but has not written yet
        return b""


def writing(path: Path) -> BinaryIO:
    """Return a non-regular file opened for writing. Raises ModelError for a pipe without a reader."""
    if not hasattr(os, "O_NONBLOCK"):  # Windows: devices, and no named pipes among the files
        return path.open("wb")
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
            raise ModelError(f"{path}: is a pipe that no process reads", "Read it, or name a file to write.")
        time.sleep(0.01)
