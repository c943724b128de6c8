"""Atomic file writes: write a temporary file next to the target, then rename it; clean up after killed processes.

The writing process locks the temporary file, and the lock is released with the process, however that ends. So a file
with our naming scheme and without a lock is stale and can be deleted.
"""

import contextlib
import fcntl
import os
import re
import resource
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import BinaryIO

from onnxfuse.files import pipes
from onnxfuse.support.errors import ModelError

SUFFIX = ".onnxfuse~"


def real(path: Path) -> Path:
    """Return the path that a write to `path` is to: where its links lead."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def is_through(path: Path) -> bool:
    """Return whether `path` is a device, a pipe or the like, which is written to and never replaced.

    Raises ModelError for a folder, and OSError for links that go in a circle.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise ModelError(f"{path}: cannot be written: is a directory", "Give the name of the file to write.")
    return not stat.S_ISREG(mode)


def same_file(path: Path, other: Path) -> bool:
    """Return whether two names mean one file, which may not be there yet; by links of either kind, too."""
    # Not Path.exists, which raises where the system does not take the name; that is told when it is written.
    if os.path.exists(path) and os.path.exists(other):
        return os.path.samefile(path, other)
    return os.path.realpath(path) == os.path.realpath(other)


def check_no_links(path: Path, folder: Path) -> None:
    """Raise ModelError where a link stands on the way from `folder` to `path`, a file in it that is to be written.

    What a user names may be a link, and what it leads to is written. What lies in a folder or beside a file that is
    named, whoever made the folder put there: a link there leads to a file that nobody named.
    """
    for place in (path, *path.parents):
        if place == folder:
            return
        if place.is_symlink():
            raise ModelError(
                f"{path}: is not written: {place} is a link, to {os.readlink(place)}",
                "Remove the link, or give another name or folder.",
            )


@contextlib.contextmanager
def replacing(path: Path, *, at_once: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `path` when the block ends well, and vanishes otherwise.

    Within `together` it waits for the end of that, unless it is to be there `at_once`. Links stay, and what they lead
    to is replaced; a device or a pipe is written through.
    """
    if is_through(path):
        with pipes.writing(path) as file:
            yield file
        return
    path = real(path)
    collect(path)
    with contextlib.ExitStack() as own:
        file, name = own.enter_context(temporary(path))
        yield file
        file.flush()
        pending = None if at_once else _pending.get()
        if pending is None:
            replace_file(name, path)
        else:
            pending.enter_context(_put_later(own.pop_all(), name, path))


@contextlib.contextmanager
def _put_later(own: contextlib.ExitStack, name: Path, path: Path) -> Iterator[None]:
    with own:
        yield
        with as_model_error(path):
            replace_file(name, path)


_pending: ContextVar[contextlib.ExitStack | None] = ContextVar("pending", default=None)
"""What waits for the end of the block at hand."""


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Let the files that are written in the block take their places when it ends well, and vanish otherwise.

    They are complete by then, so that a full disk is met before the first is put in its place. What goes through a
    device or a pipe has gone. A block within another waits for that one's end.
    """
    outer = _pending.get()
    with contextlib.ExitStack() as own:
        token = _pending.set(own)
        try:
            yield
        finally:
            _pending.reset(token)
        if outer is not None:
            outer.push(own.pop_all())


def at_failure(undo: Callable[[], None]) -> None:
    """Let `undo` be called where the block of `together` ends by an error: for what is no single file."""

    def leave(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            undo()

    pending = _pending.get()
    if pending is not None:
        pending.push(leave)


@contextlib.contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Make `folder` with its parents; those that were not there before go, with all in them, where the block fails.

    So they do where the block of `together` around it does. Raises ModelError where it cannot be made.
    """
    missing = [p for p in (folder, *folder.parents) if not os.path.exists(p)]
    try:
        with as_model_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:  # a signal, too
        if missing:
            shutil.rmtree(missing[-1], ignore_errors=True)
        raise
    if missing:
        at_failure(partial(shutil.rmtree, missing[-1], ignore_errors=True))


@contextlib.contextmanager
def room_for(files: int) -> Iterator[None]:
    """Let this process hold so many more files open inside the block, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = soft + files
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def add(path: Path, data: bytes) -> None:
    """Add `data` at the end of the file, or nothing; it goes again where `together` fails. Raises ModelError."""
    new = not os.path.lexists(path)
    with as_model_error(path), path.open("ab", buffering=0) as file:
        start = None if is_through(path) else file.seek(0, os.SEEK_END)
        undo = partial(_cut, path, start, len(data), new=new)
        try:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
        except OSError:
            undo()
            raise
    at_failure(undo)


def _cut(path: Path, start: int | None, length: int, *, new: bool) -> None:
    """Take back what was added at `start`, unless somebody else has added to it since."""
    if start is None or path.stat().st_size > start + length:
        return
    if new:
        path.unlink()
    else:
        os.truncate(path, start)


@contextlib.contextmanager
def as_model_error(path: Path) -> Iterator[None]:
    """Tell the system's refusals as ModelError."""
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be written: {error.strerror or error}", "Check the folder, its permissions and free space."
        ) from None


@contextlib.contextmanager
def temporary(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a locked file beside `path`, and its name; it goes when the block ends, unless it was put somewhere."""
    handle, name = _locked(path)
    file = os.fdopen(handle, "wb")
    try:
        yield file, name
    finally:
        # What was put somewhere was flushed before; what a full disk does not take is told already, and goes.
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(FileNotFoundError):
            name.unlink()


def _locked(path: Path) -> tuple[int, Path]:
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path), suffix=SUFFIX)
        with contextlib.suppress(OSError):  # a file system without locks: nothing is collected there
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # collected by another process before the lock was ours


def _prefix(path: Path) -> str:
    # The longest name that file systems take is 255 bytes; a name that is too long is told where it is put.
    name = os.fsencode(path.name)
    end = min(len(name), 200)
    while end < len(name) and name[end] & 0xC0 == 0x80:  # in the midst of a letter
        end -= 1
    return f".{os.fsdecode(name[:end])}."


def replace_file(name: Path, path: Path) -> None:
    """Put the temporary file `name` in the place of `path`, with the rights of what was there, or of the umask."""
    os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
    os.replace(name, path)


def collect(path: Path) -> None:
    """Remove what killed processes left in the midst of writing `path`."""
    ours = re.compile(re.escape(_prefix(path)) + r"[^.]{8}" + re.escape(SUFFIX))
    for entry in os.scandir(path.parent):
        if ours.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            _remove_unlocked(entry.path)


def _remove_unlocked(name: str) -> None:
    try:
        handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # gone meanwhile, or another user's
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
    """Let one process at a time put files into `folder` that belong together; yields False where there are no locks."""
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
