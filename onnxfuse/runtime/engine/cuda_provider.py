"""Check whether CUDA is usable, because ONNX Runtime falls back to the CPU silently if it is not."""

import contextlib
import ctypes
import io
from functools import cache
from pathlib import Path

import onnxruntime

from onnxfuse.cuda.planning.arch import Arch

PROVIDER = "CUDAExecutionProvider"


@cache
def cuda_unusable() -> str | None:
    """Return in one line what ONNX Runtime's CUDA provider lacks; None if it can be used."""
    if PROVIDER not in onnxruntime.get_available_providers():
        return f"this build of ONNX Runtime ({onnxruntime.__version__}) has no CUDA provider; onnxruntime-gpu has"
    return _driver_missing() or _libraries_missing()


def device_count() -> int:
    """Return the number of CUDA devices visible to the driver; 0 without a driver."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    # cuDeviceGetCount reports no device before cuInit.
    return count.value if driver.cuInit(0) == driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def has_driver() -> bool:
    """Return whether a CUDA driver is present, initialized or not, that does not report CUDA_ERROR_NO_DEVICE."""
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuInit(0) != NO_DEVICE)
    except OSError:
        return False


def device_fault() -> str | None:
    """Return CUDA's message for a sticky error, which fails every later call of this process; None while the GPU works.

    Call it on the thread that ran the failing work.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    code = driver.cuCtxSynchronize()
    return None if code in NO_FAULT else f"{_words(driver, code)}, CUDA error {code}"


def outside_captures() -> None:
    """Let this thread load modules and allocate memory while another thread captures a CUDA graph.

    Without it such a call would invalidate the capture.
    """
    ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(RELAXED)))


NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE."""

RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: calls of this thread do not invalidate a capture on another one."""

NO_FAULT = (0, 3, 4, 201, *range(900, 909))
"""Results of cuCtxSynchronize that indicate no fault: success, no CUDA context in this thread, and a failed capture
that is still open in it (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and the codes after it)."""


def _words(driver: ctypes.CDLL, code: int) -> str:
    words = ctypes.c_char_p()
    driver.cuGetErrorString(code, ctypes.byref(words))
    return (words.value or b"unknown error").decode()


def _driver_missing() -> str | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"there is no NVIDIA driver ({error})"
    if code := driver.cuInit(0):
        return f"the NVIDIA driver does not start ({_words(driver, code)}, cuInit returned {code})"
    return None if device_count() else "the NVIDIA driver reports no device"


def _libraries_missing() -> str | None:
    """Load the CUDA provider as ONNX Runtime does, using CUDA libraries from wheels if the system has none."""
    capi = Path(onnxruntime.__file__).parent / "capi"
    provider = str(capi / "libonnxruntime_providers_cuda.so")
    shared = _cannot_load(str(capi / "libonnxruntime_providers_shared.so"), ctypes.RTLD_GLOBAL)
    if shared is not None:
        return f"ONNX Runtime's provider library does not load ({shared})"
    system_cuda = _cannot_load(provider) is None
    # cuDNN is opened lazily, from wherever it has already been loaded.
    if not system_cuda or _cannot_load("libcudnn.so.9") is not None:
        with contextlib.redirect_stdout(io.StringIO()):  # prints every library that it cannot find
            onnxruntime.preload_dlls(cuda=not system_cuda)
    missing = _cannot_load(provider)
    return None if missing is None else f"a CUDA library is missing ({missing})"


def _cannot_load(library: str, mode: int = ctypes.DEFAULT_MODE) -> str | None:
    try:
        ctypes.CDLL(library, mode)
    except OSError as error:
        return f"{error}"
    return None


def arch_here() -> Arch | None:
    """Return the architecture of the first GPU here, for which kernels are planned where none is named; None if CUDA
    cannot be used."""
    if cuda_unusable() is not None:
        return None
    from onnxfuse.cuda import arch_of

    return arch_of(0)
