"""Locks between processes, released with the process that holds them, however that ends.

On Windows an open file cannot be deleted by others, so that an open temporary file needs no lock there.
"""

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # told apart by `is None`
msvcrt: Any
try:
    import msvcrt
except ImportError:  # all but Windows
    msvcrt = None

RENAMES_OPEN_FILES = fcntl is not None
"""Whether a file can be renamed while it is open: not on Windows."""


def lock(handle: int) -> None:
    """Lock an open file. Without locks, on some network file systems, nothing is locked."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)


def remove_unlocked(name: str) -> None:
    """Delete a file unless a process has locked it, or the file system has no locks."""
    if fcntl is None:
        if sys.platform == "win32":
            with contextlib.suppress(OSError):  # it is open: it is being written
                os.unlink(name)
        return
    try:
        handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # deleted meanwhile, or owned by another user
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name)
    except OSError:  # it is being written, or there are no locks here
        return
    finally:
        os.close(handle)


@contextlib.contextmanager
def folder_locked(folder: Path) -> Iterator[bool]:
    """Lock `folder` so that one process at a time writes related files; yields False if locks are not supported."""
    if fcntl is None:
        with _folder_locked_by_file(folder) as locked:
            yield locked
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            locked = True
        except OSError:
            locked = False
        yield locked
    finally:
        os.close(handle)


@contextlib.contextmanager
def _folder_locked_by_file(folder: Path) -> Iterator[bool]:
    """Lock a file of the user's that stands for `folder`, which Windows cannot open; it stays for the next lock."""
    if msvcrt is None:
        yield False
        return
    digest = hashlib.sha256(os.path.normcase(os.path.realpath(folder)).encode()).hexdigest()
    with open(Path(tempfile.gettempdir()) / f"onnxfuse-{digest[:32]}.lock", "ab") as file:
        try:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        except OSError:  # held for ten seconds
            yield False
            return
        try:
            yield True
        finally:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
