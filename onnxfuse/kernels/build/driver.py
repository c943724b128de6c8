"""A GPU through its driver alone: what it is, kernels that are compiled, and memory for them.

For sessions whose kernel pack has all kernels: CuPy, of which NVRTC is a part, takes 0.3 s and more to import.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from onnxfuse.kernels.arch import Arch
from onnxfuse.model.errors import DeviceError, KernelError

THREADS_PER_SM, MULTIPROCESSORS, MAJOR, MINOR = 39, 16, 75, 76
"""Of `CUdevice_attribute`: MAX_THREADS_PER_MULTIPROCESSOR, MULTIPROCESSOR_COUNT, COMPUTE_CAPABILITY_MAJOR, _MINOR."""

LONGEST_NAME = 256

_free: dict[tuple[int, int], deque[int]] = {}
"""Memory that is used no more, by device and bytes: giving it back would wait for all that runs, and end captures."""


@dataclass(frozen=True)
class Handle:
    """What the driver calls a kernel."""

    ptr: int
    """The `CUfunction`."""


@dataclass(frozen=True)
class Loaded:
    """A kernel on a GPU, which stays there; it has its handle where CuPy's functions have theirs."""

    kernel: Handle


class Memory:
    """Bytes on a GPU, which are others' once nobody holds this."""

    def __init__(self, ptr: int, free: deque[int]) -> None:
        self.ptr, self._free = ptr, free

    def __del__(self) -> None:
        """Let others have it."""
        self._free.append(self.ptr)


@cache
def arch_of(device: int) -> Arch:
    """Return what plans need to know of the GPU number `device`."""
    capability = f"{_attribute(MAJOR, device)}{_attribute(MINOR, device)}"
    return Arch(
        name=f"sm_{capability}a" if capability == "90" else f"sm_{capability}",
        sm_count=_attribute(MULTIPROCESSORS, device),
        threads_per_sm=_attribute(THREADS_PER_SM, device),
    )


def gpu_name(device: int) -> str:
    """Return what the GPU number `device` is called."""
    name = ctypes.create_string_buffer(LONGEST_NAME)
    _asked("cuDeviceGetName", name, LONGEST_NAME, _device(device))
    return name.value.decode()


def cuda_version() -> int:
    """Return the version of CUDA that the driver is for, as 13000."""
    found = ctypes.c_int()
    _asked("cuDriverGetVersion", ctypes.byref(found))
    return found.value


def load(image: bytes, entry: str, device: int) -> Loaded:
    """Return the kernel `entry` of a cubin, or of PTX; raises `KernelError` where the driver does not take it."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with _on(device):
        code = _driver().cuModuleLoadData(ctypes.byref(module), image)  # PTX ends with a zero, as Python's bytes do
        code = code or _driver().cuModuleGetFunction(ctypes.byref(function), module, entry.encode())
    if code:
        raise KernelError(f"{entry}: the driver does not load it: {_words(code)}")
    return Loaded(Handle(function.value or 0))


def zeros(size: int, device: int) -> Memory:
    """Return memory of `size` bytes on a GPU, all of them 0."""
    free = _free.setdefault((device, size), deque())
    with _on(device):
        try:
            memory = Memory(free.pop(), free)
        except IndexError:
            address = ctypes.c_void_p()
            _asked("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            memory = Memory(address.value or 0, free)
        _asked("cuMemsetD8_v2", ctypes.c_void_p(memory.ptr), ctypes.c_ubyte(0), ctypes.c_size_t(size))
        # The kernels that use it run on streams that do not wait for this one.
        _asked("cuStreamSynchronize", None)
    return memory


@contextmanager
def _on(device: int) -> Iterator[None]:
    """Let the driver's calls of this thread be about a GPU: in the context that ONNX Runtime has there, too."""
    _asked("cuCtxPushCurrent_v2", _context(device))
    try:
        yield
    finally:
        _asked("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@cache
def _context(device: int) -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    _asked("cuDevicePrimaryCtxRetain", ctypes.byref(context), _device(device))
    return context


def _attribute(which: int, device: int) -> int:
    found = ctypes.c_int()
    _asked("cuDeviceGetAttribute", ctypes.byref(found), which, _device(device))
    return found.value


@cache
def _device(number: int) -> int:
    found = ctypes.c_int()
    _asked("cuDeviceGet", ctypes.byref(found), number)
    return found.value


@cache
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"there is no NVIDIA driver ({error})", "Install it, or run on the CPU.") from None
    driver.cuInit(0)
    return driver


def _asked(call: str, *arguments: object) -> None:
    """Call the driver. Raises `DeviceError` in its words."""
    code = getattr(_driver(), call)(*arguments)
    if code:
        raise DeviceError(f"{call.removesuffix('_v2')}: {_words(code)}", "nvidia-smi tells whether the GPU works.")


def _words(code: int) -> str:
    parts = []
    for call in ("cuGetErrorName", "cuGetErrorString"):
        text = ctypes.c_char_p()
        getattr(_driver(), call)(code, ctypes.byref(text))
        parts.append((text.value or b"unknown").decode())
    return ": ".join(parts)
