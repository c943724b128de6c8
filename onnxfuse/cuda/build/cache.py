"""Disk cache of compiled kernels and launch programs, which is optional and never trusted.

An entry is used only if it is complete and matches its key, in a folder owned by this user alone. If the folder is
another user's, read-only, full or missing, kernels are compiled in memory, with one warning.
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

from onnxfuse.files import file_owner

MAGIC = b"onnxfuse kernel 1\n"

LIMIT = 2_000_000_000
"""Maximum bytes of all entries. A kernel has 10 to 100 kB, enough for a hundred models; eviction is least recently used
first."""

LARGEST = 100_000_000
"""Maximum bytes of one kernel: a larger file is invalid and not read, as it may be sparse and exceed the memory."""

SUFFIX = ".kernel"

PROGRAMS = ".programs"
"""Suffix of files with recorded launch programs instead of a kernel."""

TRUSTED = ".trusted"
"""Suffix of marker files that record, by the hash of its index, a pack that the user compiled or trusts."""

TEMPORARY = ".tmp"
"""Suffix of temporary files, which a killed process may leave."""

STALE = 3600.0
"""Age in seconds at which a temporary file is considered abandoned: writing one takes a millisecond."""

_HEADER = len(MAGIC) + 2 * hashlib.sha256().digest_size + 8


def folder() -> Path:
    """Return the folder of compiled kernels: `$XDG_CACHE_HOME/onnxfuse`, by default `~/.cache/onnxfuse`.

    Raises RuntimeError if neither is known.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onnxfuse"


def get(key: str, make: Callable[[], bytes]) -> bytes:
    """Return the cubin cached under `key`, a SHA-256 in hex; if missing or damaged, `make` and store it.

    Exceptions of `make` are passed on. Disk errors are warnings, and only cost another compilation.
    """
    try:
        root = folder()
        reason = _unusable(root)
    except RuntimeError as error:  # no home directory
        reason = f"{error}"
    except OSError as error:
        reason = f"{root}: {error.strerror or error}"
    if reason is not None:
        _warn(f"compiled kernels are not kept: {reason}")
        return make()
    file = root / f"{key}{SUFFIX}"
    cached = _read(file, key)
    if cached is not None:
        return cached
    cubin = make()
    try:
        _write(file, _packed(key, cubin))
        _evict_at_times(root, key)
    except OSError as error:
        _warn(f"compiled kernels are not kept: {root}: {error.strerror or error}")
    return cubin


def find(key: str, suffix: str = SUFFIX) -> bytes | None:
    """Return the entry of `key`, a SHA-256 in hex; None unless it is valid and ours."""
    try:
        root = folder()
        return None if _unusable(root) is not None else _read(root / f"{key}{suffix}", key)
    except (OSError, RuntimeError):  # an unreadable entry is rebuilt
        return None


def trust_pack(key: str) -> None:
    """Record that the user compiled or trusts the pack whose index has this SHA-256. Disk errors are warnings."""
    try:
        root = folder()
        reason = _unusable(root)
        if reason is None:
            _write(root / f"{key}{TRUSTED}", _packed(key, b""))
    except (OSError, RuntimeError) as error:
        reason = f"{error}"
    if reason is not None:
        _warn(f"that the kernel pack is trusted is not kept: {reason}; sessions take it where kernels= names it")


def trusts_pack(key: str) -> bool:
    """Return whether the user compiled or trusts the pack whose index has this SHA-256."""
    return find(key, TRUSTED) is not None


def keep_programs(key: str, data: bytes) -> None:
    """Store recorded launch programs, replacing the existing ones. Disk errors are warnings."""
    try:
        root = folder()
        if _unusable(root) is None:
            _write(root / f"{key}{PROGRAMS}", _packed(key, data))
            _evict_at_times(root, key)
    except (OSError, RuntimeError) as error:
        _warn(f"launch programs are not kept: {error}")


def size() -> tuple[int, int]:
    """Return the number of cached kernels, and their bytes."""
    files = _entries(folder(), SUFFIX)
    return len(files), sum(s for _, s, _ in files)


@cache
def _warn(text: str) -> None:
    warnings.warn(
        f"{text}. Each process compiles its own; set XDG_CACHE_HOME to a folder that you can write to",
        RuntimeWarning,
        stacklevel=2,
    )


def _unusable(root: Path) -> str | None:
    """Return why kernels in `root` must not be used; None if it is ours alone. A missing folder is created."""
    with contextlib.suppress(FileExistsError):
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700)
    status = os.lstat(root)
    if stat.S_ISLNK(status.st_mode):
        status = os.stat(root)
    if not stat.S_ISDIR(status.st_mode):
        return f"{root} is not a folder"
    if not file_owner.is_mine(status):
        return f"{root} belongs to another user"
    if hasattr(os, "geteuid") and status.st_mode & 0o077:
        # Older versions created it like this; foreign entries are detected by their hash, and rebuilt.
        os.chmod(root, 0o700)
    return None


def _packed(key: str, cubin: bytes) -> bytes:
    """Serialize an entry: magic, key, hash of key and cubin, length, cubin."""
    digest = hashlib.sha256(key.encode() + cubin).digest()
    return MAGIC + bytes.fromhex(key) + digest + len(cubin).to_bytes(8, "little") + cubin


def _read(file: Path, key: str) -> bytes | None:
    """Return the cubin in `file`; None if it is missing, or not what we wrote under this key."""
    try:
        handle = os.open(file, file_owner.READ_UNBLOCKED | file_owner.NO_LINK)
        try:
            status = os.fstat(handle)
            length = status.st_size - _HEADER
            if not file_owner.is_mine(status) or not stat.S_ISREG(status.st_mode) or length > LARGEST:
                return None
            with open(handle, "rb", closefd=False) as stream:
                data = stream.read(_HEADER)
                if data[-8:] != length.to_bytes(8, "little", signed=True):
                    return None
                data += stream.read(length)
        finally:
            os.close(handle)
    except OSError:  # missing or unreadable: rebuilt
        return None
    cubin = data[_HEADER:]
    if data != _packed(key, cubin):
        return None
    with contextlib.suppress(OSError):  # a read-only folder works, too; only the time of use is not updated
        os.utime(file)
    return cubin


def _write(file: Path, data: bytes) -> None:
    """Write atomically: other processes see the complete file or none."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _entries(root: Path, *suffixes: str) -> list[tuple[float, int, Path]]:
    """Return the entries as (last used, bytes, file); other processes may remove them concurrently."""
    entries = []
    for file in (f for suffix in suffixes for f in root.glob(f"*{suffix}")):
        with contextlib.suppress(FileNotFoundError):
            facts = file.lstat()
            if stat.S_ISDIR(facts.st_mode):
                continue
            entries.append((facts.st_mtime, facts.st_size, file))
    return entries


def _evict_at_times(root: Path, key: str) -> None:
    """Evict at one write in 16, because it scans all entries."""
    if key[0] == "0":
        evict(root)


def evict(root: Path) -> None:
    """Remove least recently used entries until all fit LIMIT, and remains of killed processes and older versions."""
    entries = sorted(_entries(root, SUFFIX, PROGRAMS))
    total = sum(s for _, s, _ in entries)
    now = max((used for used, _, _ in entries), default=0.0)
    for _, size, file in entries:
        if total <= LIMIT:
            break
        file.unlink(missing_ok=True)
        total -= size
    for file in (*root.glob(f"tmp*{TEMPORARY}"), *root.glob("*.cubin")):
        with contextlib.suppress(FileNotFoundError):
            if file.lstat().st_mtime < now - STALE:
                file.unlink()
