"""Launches of a plan by hand: for tests and benchmarks that have addresses instead of a session."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import cupy
import numpy as np

from onnxfuse import cuda
from onnxfuse.cuda import LaunchPlan
from onnxfuse.runtime.engine.bridge import bridge

Work = Callable[[], object]


def launcher(plan: LaunchPlan, addresses: Sequence[int], early: bool = False) -> Work:
    """Return what launches the plan on tensors at these addresses, inputs and then outputs.

    `early`: as sessions do, before the kernel ahead has ended.
    """
    parts = (plan, *plan.then)
    most = max(p.scratch_bytes for p in parts)
    room = [cuda.zeros(most, 0)] if most else []
    works = [_launcher(p, addresses, early, room) for p in parts if p.grid[0]]
    return works[0] if len(works) == 1 else lambda: [work() for work in works]


def _launcher(plan: LaunchPlan, addresses: Sequence[int], early: bool, room: list[Any]) -> Work:
    function = cuda.load(plan.kernel, 0)
    if plan.shared_bytes > function.max_dynamic_shared_size_bytes:  # of all launches of the function: it only grows
        function.max_dynamic_shared_size_bytes = plan.shared_bytes
    scratch = room if plan.scratch_bytes else []
    pointers = [*addresses, *(s.ptr for s in scratch)]
    blobs = [bridge().encoded_tensor_maps(plan.tensor_maps, pointers)] if plan.tensor_maps else []
    if early and cuda.arch_of(0).isa.starts_early:
        launch = early_launch(function, plan.grid, plan.block, plan.shared_bytes, pointers, (*blobs, plan.parameters))
        return keeping(launch, scratch)
    # CuPy passes a NumPy array of one element by value, whatever its size.
    by_value = [np.frombuffer(b, np.dtype((np.void, len(b)))) for b in (*blobs, plan.parameters)]
    arguments = (*map(np.uint64, pointers), *by_value)
    launch = partial(function, plan.grid, plan.block, arguments, shared_mem=plan.shared_bytes)
    return keeping(launch, scratch)


def keeping(work: Work, needed: object) -> Work:
    """Return the work with the memory that it knows by address alone, which lives as long."""

    def run(needed: object = needed) -> object:
        return work()

    return run


# ---- what CuPy has no word for: CUlaunchConfig with one attribute, programmatic stream serialization


class _Attribute(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def early_launch(
    function: cupy.cuda.Function,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    pointers: Sequence[int],
    by_value: Sequence[bytes],
) -> Work:
    """Return what launches a function on CuPy's stream while the kernel ahead may still run; it waits by itself."""
    values = [*map(ctypes.c_uint64, pointers), *(ctypes.create_string_buffer(b, len(b)) for b in by_value)]
    arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    attribute = _Attribute(6, 0, (1,))  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

    def launch(keep: object = values) -> None:
        stream = cupy.cuda.get_current_stream().ptr
        config = _Config(grid, block, shared_bytes, stream, ctypes.pointer(attribute), 1)
        status = _driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function.kernel.ptr), arguments, None)
        if status:
            raise RuntimeError(f"cuLaunchKernelEx says {status}")

    return launch
