"""GPU properties from the driver alone: importing CuPy takes 0.15 s, which a session can overlap with other work."""

import ctypes
from functools import cache

from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.support.errors import DeviceError

MULTIPROCESSORS, THREADS, MAJOR, MINOR = 16, 39, 75, 76
"""Values of `CUdevice_attribute`; THREADS is the maximum per multiprocessor."""


@cache
def arch_of(device: int) -> Arch:
    """Return the properties of GPU `device` that plans need. Raises DeviceError if there is none."""
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
