"""Trace device activity with CUPTI: each kernel, copy and fill with its times, and the time of its launch on the host.

Through NVIDIA's own binding, the package cupti-python. It covers the whole process, ONNX Runtime's kernels and ours;
ONNX Runtime's profiler supports CUPTI too, but its published wheels are built without it.
"""

import ctypes
import importlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfuse.measure.profile.kernels import TracedKernel
from onnxfuse.support.errors import DeviceError

BINDING = "cupti.cupti"
"""Imported lazily: it is an extra, and loads libcupti."""

ON_DEVICE = ("CONCURRENT_KERNEL", "MEMCPY", "MEMSET")
CALLS = ("RUNTIME", "DRIVER")
"""CUDA API calls on the host that launch kernels."""

BUFFER = 8 << 20
"""Buffer size in bytes, as in CUPTI's samples; records are delivered when it is full."""

HINT = "pip install 'onnxfuse[profile]'"


@dataclass(frozen=True)
class Record:
    """A CUPTI record, copied out of its buffer; times are nanoseconds of CUPTI's clock."""

    kind: str
    """One of ON_DEVICE, or CALLS."""
    begin: int
    end: int
    correlation: int
    """Shared by an API call and the activity that it causes on the device."""
    name: str = ""
    """The mangled function name; empty unless it is a kernel."""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    shared_bytes: int | None = None


def missing() -> str | None:
    """Return in one line why kernels cannot be traced here; None if they can."""
    try:
        binding: Any = importlib.import_module(BINDING)
    except ImportError as error:
        return f"cupti-python is not installed ({error})"
    try:
        binding.get_timestamp()
    except (RuntimeError, binding.cuptiError) as error:
        return f"CUPTI does not start ({error})"
    return None


def traced(run: Callable[[], None], runs: int, zero_ns: int) -> list[list[TracedKernel]]:
    """Return the device activity of each of `runs` calls of `run`, in order; times count from `zero_ns` since 1970.

    `run` must synchronize with the device, and be warmed up: compilation and algorithm search of a first run are not
    part of it. Raises DeviceError if CUPTI cannot be used.
    """
    reason = missing()
    if reason is not None:
        raise DeviceError(f"GPU kernels cannot be traced: {reason}", HINT)
    binding: Any = importlib.import_module(BINDING)
    records: list[Record] = []
    kinds = {int(getattr(binding.ActivityKind, name)): name for name in (*ON_DEVICE, *CALLS)}
    try:
        binding.activity_register_callbacks(
            lambda: (BUFFER, 0), lambda activities: records.extend(_records(activities, kinds))
        )
        for kind in kinds:
            binding.activity_enable(kind)
        begins = []
        for _ in range(runs):
            begins.append(binding.get_timestamp())
            run()
        binding.activity_flush_all(1)
        for kind in kinds:
            binding.activity_disable(kind)
    except binding.cuptiError as error:
        raise DeviceError(
            f"CUPTI refuses: {error}", "Another profiler may hold the GPU; --no-time counts without running."
        ) from error
    return split(records, begins, zero_ns - _ahead(binding))


def split(records: Iterable[Record], begins: Sequence[int], zero: int) -> list[list[TracedKernel]]:
    """Assign kernels to runs by launch time, else by execution time; `zero` is by CUPTI's clock."""
    remaining = list(records)
    launched = {r.correlation: r.begin for r in remaining if r.kind in CALLS}
    groups: list[list[TracedKernel]] = [[] for _ in begins]
    for record in sorted((r for r in remaining if r.kind in ON_DEVICE), key=lambda r: r.begin):
        call = launched.get(record.correlation)
        at = int(np.searchsorted(begins, record.begin if call is None else call, "right")) - 1
        if at >= 0:
            groups[at].append(_kernel(record, call, zero))
    return groups


def _kernel(record: Record, call: int | None, zero: int) -> TracedKernel:
    return TracedKernel(
        name=demangled(record.name) if record.name else {"MEMCPY": "copy", "MEMSET": "fill"}[record.kind],
        begin=(record.begin - zero) / 1e3,
        duration=(record.end - record.begin) / 1e3,
        launched=None if call is None else (call - zero) / 1e3,
        copy=not record.name,
        grid=record.grid,
        block=record.block,
        registers=record.registers,
        shared_bytes=record.shared_bytes,
    )


def demangled(name: str) -> str:
    """Return the demangled name of a C++ function, any other name unchanged."""
    if not name.startswith("_Z"):
        return name
    library = ctypes.CDLL("libstdc++.so.6")  # already loaded by ONNX Runtime
    demangle, free = library["__cxa_demangle"], ctypes.CDLL(None).free
    demangle.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    status = ctypes.c_int()
    text = demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value != 0:
        return name
    plain = ctypes.string_at(text).decode()
    free(text)
    return plain


def _records(activities: Iterable[Any], kinds: Mapping[int, str]) -> Iterable[Record]:
    """Yield copies of the requested records, because CUPTI reuses its buffer."""
    for a in activities:
        kind = kinds.get(int(a.kind))
        if kind == "CONCURRENT_KERNEL":
            yield Record(
                kind, a.start, a.end, a.correlation_id, a.name, (a.grid_x, a.grid_y, a.grid_z),
                (a.block_x, a.block_y, a.block_z), a.registers_per_thread,
                a.static_shared_memory + a.dynamic_shared_memory,
            )  # fmt: skip
        elif kind is not None:
            yield Record(kind, a.start, a.end, a.correlation_id)


def _ahead(binding: Any) -> int:
    """Return the offset of the system's clock from CUPTI's in nanoseconds: the closest of several paired readings."""
    readings = []
    for _ in range(20):
        before = time.time_ns()
        theirs = int(binding.get_timestamp())
        after = time.time_ns()
        readings.append((after - before, (before + after) // 2 - theirs))
    return min(readings)[1]
