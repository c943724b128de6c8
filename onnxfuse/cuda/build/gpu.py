"""What a GPU is, by its driver alone: CuPy takes 0.15 s to import, and a session can do that while others work."""

import ctypes
from functools import cache

from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.support.errors import DeviceError

MULTIPROCESSORS, THREADS, MAJOR, MINOR = 16, 39, 75, 76
"""Of `CUdevice_attribute`; THREADS are those that a multiprocessor holds."""


@cache
def arch_of(device: int) -> Arch:
    """Return what plans need to know of the GPU number `device`. Raises DeviceError where there is none."""
    capability = f"{_attribute(MAJOR, device)}{_attribute(MINOR, device)}"
    return Arch(
        name=f"sm_{capability}a" if capability == "90" else f"sm_{capability}",
        sm_count=_attribute(MULTIPROCESSORS, device),
        threads_per_sm=_attribute(THREADS, device),
    )


def _attribute(which: int, device: int) -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"there is no NVIDIA driver ({error})", "Install it, or run on the CPU.") from None
    handle, value = ctypes.c_int(), ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), device)
    code = code or driver.cuDeviceGetAttribute(ctypes.byref(value), which, handle)
    if code:
        raise DeviceError(f"the NVIDIA driver tells nothing of device {device}, CUDA error {code}", "See nvidia-smi.")
    return value.value
