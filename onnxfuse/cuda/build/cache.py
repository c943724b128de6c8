"""Compiled kernels and launch programs on disk, as a help that is never trusted and never needed.

An entry is taken only where it is whole and of its key, in a folder that is ours alone. Where the folder is another
user's, read-only, full or not to be found, kernels are compiled in memory, and a warning says so once.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

MAGIC = b"onnxfuse kernel 1\n"

LIMIT = 2_000_000_000
"""Bytes of all entries. A kernel has 10 to 100 kB, so a hundred models stay; what was used longest ago goes first."""

LARGEST = 100_000_000
"""Bytes of one kernel: a file that has more is none, and is not read: it may be sparse, and larger than the memory."""

SUFFIX = ".kernel"

PROGRAMS = ".programs"
"""The end of a file's name that holds what launch programs have learned, which is no kernel."""

TRUSTED = ".trusted"
"""The end of a file's name that says, by the hash of its index, which pack the user compiled or trusts."""

TEMPORARY = ".tmp"
"""What a process that was killed in the midst of writing leaves behind."""

STALE = 3600.0
"""Seconds after which a file that is being written is written by nobody: writing one takes a millisecond."""

_HEADER = len(MAGIC) + 2 * hashlib.sha256().digest_size + 8


def folder() -> Path:
    """Return the folder of compiled kernels: `$XDG_CACHE_HOME/onnxfuse`, by default `~/.cache/onnxfuse`.

    Raises RuntimeError where neither is known.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onnxfuse"


def get(key: str, make: Callable[[], bytes]) -> bytes:
    """Return the cubin kept under `key`, a SHA-256 in hex; where none is, or a damaged one, `make` it and keep it.

    Whatever `make` raises is raised. Trouble with the disk is a warning, and costs the time to compile again.
    """
    try:
        place = folder()
        reason = _unusable(place)
    except RuntimeError as error:  # no home
        reason = f"{error}"
    except OSError as error:
        reason = f"{place}: {error.strerror or error}"
    if reason is not None:
        _warn(f"compiled kernels are not kept: {reason}")
        return make()
    file = place / f"{key}{SUFFIX}"
    held = _read(file, key)
    if held is not None:
        return held
    made = make()
    try:
        _write(file, _packed(key, made))
        _evict_at_times(place, key)
    except OSError as error:
        _warn(f"compiled kernels are not kept: {place}: {error.strerror or error}")
    return made


def find(key: str, suffix: str = SUFFIX) -> bytes | None:
    """Return what is kept under `key`, a SHA-256 in hex, None where nothing whole and of ours is."""
    try:
        place = folder()
        return None if _unusable(place) is not None else _read(place / f"{key}{suffix}", key)
    except (OSError, RuntimeError):  # what cannot be read is made anew
        return None


def trust_pack(key: str) -> None:
    """Remember that the user compiled or trusts the pack whose index has this SHA-256. Trouble is a warning."""
    try:
        place = folder()
        reason = _unusable(place)
        if reason is None:
            _write(place / f"{key}{TRUSTED}", _packed(key, b""))
    except (OSError, RuntimeError) as error:
        reason = f"{error}"
    if reason is not None:
        _warn(f"that the kernel pack is trusted is not kept: {reason}; sessions take it where kernels= names it")


def trusts_pack(key: str) -> bool:
    """Return whether the user compiled or trusts the pack whose index has this SHA-256."""
    return find(key, TRUSTED) is not None


def keep_programs(key: str, data: bytes) -> None:
    """Keep what launch programs have learned, in place of what is there. Trouble with the disk is a warning."""
    try:
        place = folder()
        if _unusable(place) is None:
            _write(place / f"{key}{PROGRAMS}", _packed(key, data))
            _evict_at_times(place, key)
    except (OSError, RuntimeError) as error:
        _warn(f"launch programs are not kept: {error}")


def size() -> tuple[int, int]:
    """Return how many kernels are kept, and their bytes."""
    files = _entries(folder(), SUFFIX)
    return len(files), sum(s for _, s, _ in files)


@cache
def _warn(text: str) -> None:
    warnings.warn(
        f"{text}. Each process compiles its own; set XDG_CACHE_HOME to a folder of yours that can be written",
        RuntimeWarning,
        stacklevel=2,
    )


def _unusable(place: Path) -> str | None:
    """Return why no kernel in `place` is to be taken, None where it is ours alone; it is made where it is missing."""
    with contextlib.suppress(FileExistsError):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(mode=0o700)
    found = os.lstat(place)
    if stat.S_ISLNK(found.st_mode):
        found = os.stat(place)
    if not stat.S_ISDIR(found.st_mode):
        return f"{place} is not a folder"
    if found.st_uid != os.geteuid():
        return f"{place} belongs to another user"
    if found.st_mode & 0o077:
        # Older versions made it so; what others may have put there is found out by its hash, and made anew.
        os.chmod(place, 0o700)
    return None


def _packed(key: str, cubin: bytes) -> bytes:
    """Return an entry: what it is, the key, a hash of key and cubin, the length, the cubin."""
    digest = hashlib.sha256(key.encode() + cubin).digest()
    return MAGIC + bytes.fromhex(key) + digest + len(cubin).to_bytes(8, "little") + cubin


def _read(file: Path, key: str) -> bytes | None:
    """Return the cubin in `file`, None where there is none, or it is not what was written under this key, by us."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a FIFO would be waited for
        try:
            found = os.fstat(handle)
            length = found.st_size - _HEADER
            if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode) or length > LARGEST:
                return None
            with open(handle, "rb", closefd=False) as stream:
                data = stream.read(_HEADER)
                if data[-8:] != length.to_bytes(8, "little", signed=True):
                    return None
                data += stream.read(length)
        finally:
            os.close(handle)
    except OSError:  # not there, or not to be read: it is made anew
        return None
    cubin = data[_HEADER:]
    if data != _packed(key, cubin):
        return None
    with contextlib.suppress(OSError):  # a read-only folder serves, too; it only forgets what was used last
        os.utime(file)
    return cubin


def _write(file: Path, data: bytes) -> None:
    """Write atomically: other processes see the whole file or none. What others see is complete, or has no name."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _entries(place: Path, *suffixes: str) -> list[tuple[float, int, Path]]:
    """Return such entries as (last used, bytes, file); another process may take any of them away meanwhile."""
    found = []
    for file in (f for suffix in suffixes for f in place.glob(f"*{suffix}")):
        with contextlib.suppress(FileNotFoundError):
            facts = file.lstat()
            if stat.S_ISDIR(facts.st_mode):
                continue
            found.append((facts.st_mtime, facts.st_size, file))
    return found


def _evict_at_times(place: Path, key: str) -> None:
    """Evict at one write in 16: that looks at all entries."""
    if key[0] == "0":
        evict(place)


def evict(place: Path) -> None:
    """Remove what was used longest ago until all fit LIMIT, and what killed processes and older versions left."""
    entries = sorted(_entries(place, SUFFIX, PROGRAMS))
    total = sum(s for _, s, _ in entries)
    now = max((used for used, _, _ in entries), default=0.0)
    for _, taken, file in entries:
        if total <= LIMIT:
            break
        file.unlink(missing_ok=True)
        total -= taken
    for file in (*place.glob(f"tmp*{TEMPORARY}"), *place.glob("*.cubin")):
        with contextlib.suppress(FileNotFoundError):
            if file.lstat().st_mtime < now - STALE:
                file.unlink()
