"""Limits of this process's memory, processor time and open files, where the system has them: Windows has none."""

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # told apart by `is None`

MAPPED = Path("/proc/self/statm")
"""Linux's count of the pages that this process maps."""


def no_memory_limit() -> str | None:
    """Return why memory cannot be limited on this system, None where it can."""
    if resource is None:
        return "this system has no memory limit for a process"
    if not MAPPED.exists():
        return "this system does not say how much memory a process maps (no /proc)"
    return None


@contextlib.contextmanager
def memory(size: int) -> Iterator[None]:
    """Let this process map at most `size` bytes more inside the block: allocations beyond raise MemoryError.

    No limit where `no_memory_limit` has a reason.
    """
    if no_memory_limit() is not None:
        yield
        return
    mapped = int(MAPPED.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    with _soft_limit(resource.RLIMIT_AS, mapped + size):
        yield


@contextlib.contextmanager
def processor_time(seconds: int) -> Iterator[None]:
    """Have the system end this process if the block takes more processor time; no limit on Windows."""
    if resource is None:
        yield
        return
    with (
        _soft_limit(resource.RLIMIT_CORE, 0),
        _soft_limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds),
    ):
        yield


@contextlib.contextmanager
def open_files(more: int) -> Iterator[None]:
    """Raise the limit of open files by so many inside the block, as far as the system allows."""
    if resource is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = soft + more if hard == resource.RLIM_INFINITY else min(soft + more, hard)
    if soft == resource.RLIM_INFINITY or limit <= soft:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _soft_limit(kind: int, limit: int) -> Iterator[None]:
    """Lower a limit to `limit` inside the block; a lower one stays."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit if soft == resource.RLIM_INFINITY else min(soft, limit), hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
