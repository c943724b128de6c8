"""Atomic file writes: write a temporary file next to the target, then rename it; clean up after killed processes.

The writing process locks the temporary file, and the lock is released with the process, however that ends. So a file
with our naming scheme and without a lock is stale and can be deleted.
"""

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import BinaryIO

from onnxfuse.files import locks, pipes
from onnxfuse.support.errors import ModelError

SUFFIX = ".onnxfuse~"


def real(path: Path) -> Path:
    """Return the real target of a write to `path`, with links resolved."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def is_through(path: Path) -> bool:
    """Return whether `path` is a device, a pipe or the like, which is written in place and never replaced.

    Raises ModelError for a folder, and OSError for circular links.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise ModelError(f"{path}: cannot be written: is a directory", "Give the name of the file to write.")
    return not stat.S_ISREG(mode)


def same_file(path: Path, other: Path) -> bool:
    """Return whether two names denote one file, which may not exist yet; hard and symbolic links included."""
    # Not Path.exists, which raises for an invalid name; writing reports that.
    if os.path.exists(path) and os.path.exists(other):
        return os.path.samefile(path, other)
    return os.path.realpath(path) == os.path.realpath(other)


def check_no_links(path: Path, folder: Path) -> None:
    """Raise ModelError if a symbolic link lies between `folder` and `path`, a file in it that is to be written.

    A path named by the user may be a link, and its target is written. Entries inside a folder or next to a named file
    were created by whoever made the folder: a link there leads to a file that nobody named.
    """
    for component in (path, *path.parents):
        if component == folder:
            return
        if component.is_symlink():
            raise ModelError(
                f"{path}: is not written: {component} is a link, to {os.readlink(component)}",
                "Remove the link, or give another name or folder.",
            )


@contextlib.contextmanager
def replacing(path: Path, *, at_once: bool = False) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `path` when the block succeeds, and is deleted otherwise.

    Within `together` the replacement is deferred to its end, unless `at_once`. Links are kept, and their targets
    replaced; a device or a pipe is written in place.
    """
    if is_through(path):
        with pipes.writing(path) as file:
            yield file
        return
    path = real(path)
    collect(path)
    with contextlib.ExitStack() as stack:
        file, name = stack.enter_context(temporary(path))
        yield file
        file.flush()
        pending = None if at_once else _pending_here()
        if pending is None:
            replace_file(file, name, path)
        else:
            pending.enter_context(_put_later(stack.pop_all(), file, name, path))


@contextlib.contextmanager
def _put_later(stack: contextlib.ExitStack, file: BinaryIO, name: Path, path: Path) -> Iterator[None]:
    with stack:
        yield
        with as_model_error(path):
            replace_file(file, name, path)


_pending: ContextVar[tuple[int, contextlib.ExitStack] | None] = ContextVar("pending", default=None)
"""The process that entered the current block, and the block's deferred replacements."""


def _pending_here() -> contextlib.ExitStack | None:
    """Return the deferred replacements of the current block of this process.

    A child that was forked within a block replaces its files itself: the block of its parent does not know of them.
    """
    found = _pending.get()
    return found[1] if found is not None and found[0] == os.getpid() else None


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Replace all files written in the block when it succeeds, and delete them otherwise.

    They are complete by then, so that a full disk is detected before the first replacement. Data written to a device or
    a pipe cannot be undone. A nested block is deferred to the end of the outer one.
    """
    outer = _pending_here()
    with contextlib.ExitStack() as stack:
        token = _pending.set((os.getpid(), stack))
        try:
            yield
        finally:
            _pending.reset(token)
        if outer is not None:
            outer.push(stack.pop_all())


def at_failure(undo: Callable[[], None]) -> None:
    """Register `undo` to be called if the block of `together` fails: for changes other than single files."""

    def leave(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            undo()

    pending = _pending_here()
    if pending is not None:
        pending.push(leave)


@contextlib.contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Create `folder` with its parents; the new ones are deleted with their contents if the block fails.

    Also if the enclosing block of `together` fails. Raises ModelError if it cannot be created.
    """
    new_folders = list[Path]()  # only what this process made is ever deleted
    try:
        with as_model_error(folder):
            for one in reversed((folder, *folder.parents)):
                if not one.is_dir():
                    with contextlib.suppress(FileExistsError):  # another process made it, or the next line refuses it
                        one.mkdir()
                        new_folders.append(one)
            folder.mkdir(exist_ok=True)
        yield
    except BaseException:  # also on a signal
        if new_folders:
            shutil.rmtree(new_folders[0], ignore_errors=True)
        raise
    if new_folders:
        at_failure(partial(shutil.rmtree, new_folders[0], ignore_errors=True))


def add(path: Path, data: bytes) -> None:
    """Append `data` to the file completely or not at all; undone if `together` fails. Raises ModelError."""
    new = not os.path.lexists(path)
    with as_model_error(path), path.open("ab", buffering=0) as file:
        start = None if is_through(path) else file.seek(0, os.SEEK_END)
        undo = partial(_cut, path, start, len(data), new=new)
        try:
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[file.write(remaining) :]
        except OSError:
            undo()
            raise
    at_failure(undo)


def _cut(path: Path, start: int | None, length: int, *, new: bool) -> None:
    """Remove what was appended at `start`, unless another process has appended to it since."""
    if start is None or path.stat().st_size > start + length:
        return
    if new:
        path.unlink()
    else:
        os.truncate(path, start)


@contextlib.contextmanager
def as_model_error(path: Path) -> Iterator[None]:
    """Convert the system's errors to ModelError."""
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be written: {error.strerror or error}", "Check the folder, its permissions and free space."
        ) from None


@contextlib.contextmanager
def temporary(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a locked temporary file next to `path`, and its name; deleted after the block unless renamed."""
    handle, name = _locked(path)
    file = os.fdopen(handle, "wb")
    try:
        yield file, name
    finally:
        # A renamed file was flushed before; an error of a full disk is reported already, and the file is deleted.
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(FileNotFoundError):
            name.unlink()


def _locked(path: Path) -> tuple[int, Path]:
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path), suffix=SUFFIX)
        locks.lock(handle)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # collected by another process before it was locked


def _prefix(path: Path) -> str:
    # File systems limit names to 255 bytes; the final rename reports a name that is too long.
    name = os.fsencode(path.name)
    end = min(len(name), 200)
    while end < len(name) and name[end] & 0xC0 == 0x80:  # in the middle of a UTF-8 sequence
        end -= 1
    return f".{os.fsdecode(name[:end])}."


def replace_file(file: BinaryIO, name: Path, path: Path) -> None:
    """Rename the temporary `file`, called `name`, to `path`, with the permissions of the replaced file or of the umask.

    It stays open, and locked, where an open file can be renamed.
    """
    if not locks.RENAMES_OPEN_FILES:
        file.close()
    os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
    os.replace(name, path)


def collect(path: Path) -> None:
    """Delete stale temporary files of killed processes that were writing `path`."""
    ours = re.compile(re.escape(_prefix(path)) + r"[^.]{8}" + re.escape(SUFFIX))
    for entry in os.scandir(path.parent):
        if ours.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            locks.remove_unlocked(entry.path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def writable(target: Path) -> None:
    """Raise ModelError if `target` is a directory, has no parent directory, or has a name that the system rejects."""
    # Not Path.is_dir, which raises for names that the system rejects; those are reported on writing.
    if os.path.isdir(target):
        raise ModelError(f"{target}: is a directory", "Give the name of the file to write.")
    if not os.path.isdir(target.parent):
        raise ModelError(f"{target}: the folder {target.parent} does not exist", "Create it first.")
    with as_model_error(target), contextlib.suppress(FileNotFoundError):
        os.lstat(target)
