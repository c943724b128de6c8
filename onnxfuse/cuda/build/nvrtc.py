"""Compile kernels with NVRTC, cache the cubins on disk, and load them through CuPy."""

import functools
import hashlib
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.cuda.build import cache
from onnxfuse.cuda.build.gpu import arch_of
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.support.errors import KernelError, NoCompilerError
from onnxfuse.support.log import LOG

_lock = threading.Lock()
_compiling: dict[str, threading.Lock] = {}
"""Locks by disk key, so that threads do not compile the same kernel concurrently."""
_loaded: dict[tuple[KernelSource, int], Any] = {}
_images: dict[tuple[bytes, str, int], Any] = {}
_cubin_bytes: list[int] = []
"""Loaded functions by the SHA-256 of the image, its entry and the device."""


def compile(kernel: KernelSource, arch: Arch) -> bytes:
    """Return the cubin of `kernel` for `arch`, from the disk cache if possible.

    Needs NVRTC (a wheel), no GPU. Raises `KernelError` with the compiler's message, file and line.
    """
    key = _key(kernel, arch)
    with _lock:
        mine = _compiling.setdefault(key, threading.Lock())
    with mine:  # a concurrent request finds it on disk
        return cache.get(key, lambda: build(kernel, arch)[0])


def portable(kernel: KernelSource, arch: Arch) -> bytes:
    """Return the PTX of `kernel` for `arch`, which the driver compiles for that and later architectures; like
    `compile`."""
    key = _key(kernel, arch, "compute")
    return cache.get(key, lambda: build(kernel, arch, ptx=True)[0])


def is_compiled(kernel: KernelSource, device: int) -> bool:
    """Return whether `load` would find the kernel compiled."""
    return (kernel, device) in _loaded or cache.find(_key(kernel, arch_of(device))) is not None


def build(kernel: KernelSource, arch: Arch, flags: tuple[str, ...] = (), *, ptx: bool = False) -> tuple[bytes, str]:
    """Return (cubin or PTX, compiler log) of `kernel`, bypassing the cache. `-Xptxas=-v` in `flags` logs the
    registers."""
    nvrtc, start = _nvrtc(), time.perf_counter()
    program = nvrtc.createProgram(kernel.text, f"{kernel.entry}.cu", (), ())
    try:
        target = f"compute_{arch.number}" if ptx else arch.name
        nvrtc.compileProgram(program, (*kernel.flags, f"-arch={target}", *flags))
        image = nvrtc.getPTX(program) if ptx else _whole(nvrtc.getCUBIN(program))
        LOG.info("compiled %s for %s in %.2f s", kernel.entry, target, time.perf_counter() - start)
        return image, nvrtc.getProgramLog(program).rstrip("\0")
    except nvrtc.NVRTCError as error:
        raise KernelError(
            f"{kernel.entry}: NVRTC does not compile it for {arch.name} ({error}): {nvrtc.getProgramLog(program)}",
            "this is a bug in onnxfuse; the message names the template file and its line",
        ) from error
    finally:
        nvrtc.destroyProgram(program)


def _whole(cubin: bytes) -> bytes:
    """Restore the last byte of an ELF file, which CuPy strips as if it terminated a string: a 0, the last of a table.

    The driver loads it without, but nvdisasm and cuobjdump do not read it.
    """
    tables, entries = struct.unpack_from("<2Q", cubin, 32), struct.unpack_from("<4H", cubin, 54)
    ends = (at + size * count for at, size, count in zip(tables, entries[::2], entries[1::2], strict=True))
    return cubin.ljust(max(ends), b"\0")


def load_image(image: Callable[[], bytes], digest: bytes, entry: str, device: int) -> Any:
    """Return the CuPy function `entry` of a compiled kernel on GPU `device`; it stays loaded.

    `image` supplies it if none with this SHA-256 has been loaded. Raises `KernelError` if the driver rejects it.
    """
    import cupy

    key = (digest, entry, device)
    with _lock, cupy.cuda.Device(device):
        if key not in _images:
            try:
                _images[key] = _function(image(), entry)
            except cupy.cuda.driver.CUDADriverError as error:
                raise KernelError(f"{entry}: the driver does not load it: {error}") from error
        return _images[key]


def load(kernel: KernelSource, device: int) -> Any:
    """Return the CuPy function of `kernel` on GPU `device`; its handle is `.kernel.ptr`."""
    key = (kernel, device)
    function = _loaded.get(key)
    if function is not None:
        return function
    import cupy

    cubin = compile(kernel, arch_of(device))
    with _lock, cupy.cuda.Device(device):
        if key not in _loaded:
            _loaded[key] = _function(cubin, kernel.entry)
        return _loaded[key]


def loaded_bytes() -> int:
    """Return the bytes of the cubins that this process has loaded."""
    return sum(_cubin_bytes)


def _function(cubin: bytes, entry: str) -> Any:
    """Return CuPy's function of a cubin, through a temporary file, because CuPy loads modules from files only."""
    import cupy

    _cubin_bytes.append(len(cubin))
    with tempfile.NamedTemporaryFile(prefix="onnxfuse-", suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        function = cupy.RawModule(path=file.name).get_function(entry)
        function.kernel  # noqa: B018 - CuPy reads the file when the function is first asked for
    return function


def compiles_for() -> tuple[int, ...]:
    """Return the compute capabilities, times ten, that NVRTC supports. Raises `KernelError` without NVRTC."""
    return tuple(_nvrtc().getSupportedArchs())


def zeros(size: int, device: int) -> Any:
    """Return zero-initialized GPU memory of `size` bytes, as CuPy's `MemoryPointer`."""
    import cupy

    with cupy.cuda.Device(device):
        memory = cupy.cuda.alloc(size)
        memory.memset(0, size)
        # The kernels that use it run on streams that do not synchronize with this one.
        cupy.cuda.Stream.null.synchronize()
    return memory


def _key(kernel: KernelSource, arch: Arch, form: str = "") -> str:
    facts = (kernel.text, *kernel.flags, arch.name, *map(str, _nvrtc().getVersion()), *([form] if form else ()))
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()


@functools.cache
def _nvrtc() -> Any:
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        raise NoCompilerError(
            f"NVRTC, the CUDA compiler library, cannot be loaded: {error}",
            "pip install 'onnxfuse[nvrtc]'",
        ) from error
    return nvrtc
