"""Limits inside a block, which end with it; where the system has none, the block runs without."""

import resource
from pathlib import Path

import pytest

from onnxfuse.support import process_limits
from onnxfuse.support.process_limits import memory, no_memory_limit, open_files, processor_time

KINDS = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)


def limits() -> list[tuple[int, int]]:
    """Return the limits of this process."""
    return [resource.getrlimit(kind) for kind in KINDS]


def test_memory_is_limited_beyond_what_is_mapped() -> None:
    """An allocation beyond raises; one of that size does not."""
    before = limits()
    with memory(64 << 20):
        bytearray(16 << 20)
        with pytest.raises(MemoryError):
            bytearray(96 << 20)
        with memory(1 << 40):
            assert resource.getrlimit(resource.RLIMIT_AS)[0] < 1 << 40
    assert limits() == before


def test_processor_time_is_limited_beyond_what_was_used() -> None:
    """Whole seconds; no core is dumped."""
    before = limits()
    with processor_time(100):
        (limit, hard), core = resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_CORE)
        assert 100 < limit < 100_000
        assert (hard, core[0]) == (before[1][1], 0)
    assert limits() == before


def test_open_files_are_raised_as_far_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not above the hard limit, and not at all where there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        with open_files(10):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (74, hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (64, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    raised = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: raised.append(limit))
    for given, expected in (
        ((64, 70), [(70, 70), (64, 70)]), ((70, 70), []), ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), []),
        ((64, resource.RLIM_INFINITY), [(74, resource.RLIM_INFINITY), (64, resource.RLIM_INFINITY)]),
    ):  # fmt: skip
        raised.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _, given=given: given)
        with open_files(10):
            pass
        assert raised == expected


def test_a_system_without_limits_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And runs the blocks all the same."""
    assert no_memory_limit() is None
    before, ran = limits(), 0
    monkeypatch.setattr(process_limits, "MAPPED", Path("/nowhere"))
    assert no_memory_limit() == "this system does not say how much memory a process maps (no /proc)"
    with memory(1):
        ran += 1
    monkeypatch.setattr(process_limits, "resource", None)
    assert no_memory_limit() == "this system has no memory limit for a process"
    for block in (memory(1), processor_time(0), open_files(1)):
        with block:
            ran += 1
    assert ran == 4
    assert limits() == before
