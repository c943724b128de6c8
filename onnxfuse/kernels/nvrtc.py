"""Compile kernels by NVRTC, keep the cubins on disk, load them through CuPy."""

import hashlib
import os
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.source import KernelSource
from onnxfuse.model.errors import KernelError

_ELF = b"\x7fELF"
_lock = threading.Lock()
_loaded: dict[tuple[KernelSource, int], Any] = {}


def compile(kernel: KernelSource, arch: Arch) -> bytes:
    """Return the cubin of `kernel` for `arch`, from the disk cache where it is there.

    Needs NVRTC (a wheel), no GPU. Raises `KernelError` with the compiler's words, file and line.
    """
    return cubin_file(kernel, arch).read_bytes()


def cubin_file(kernel: KernelSource, arch: Arch) -> Path:
    """Return the file in the cache that holds the cubin of `kernel` for `arch`, compiling it first if need be."""
    file = cache_folder() / f"{_key(kernel, arch)}.cubin"
    if not _is_cubin(file):
        cubin, _ = build(kernel, arch)
        _write(file, cubin)
    return file


def build(kernel: KernelSource, arch: Arch, flags: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """Return (cubin, compiler's log) of `kernel`, past the cache. `-Xptxas=-v` among `flags` logs the registers."""
    nvrtc = _nvrtc()
    program = nvrtc.createProgram(kernel.text, f"{kernel.entry}.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*kernel.flags, f"-arch={arch.name}", *flags))
        return nvrtc.getCUBIN(program), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        raise KernelError(
            f"{kernel.entry}: NVRTC does not compile it for {arch.name} ({error}): {nvrtc.getProgramLog(program)}",
            "this is a bug in onnxfuse; the message names the template file and its line",
        ) from error
    finally:
        nvrtc.destroyProgram(program)


def load(kernel: KernelSource, device: int) -> Any:
    """Return the CuPy function of `kernel` on the GPU number `device`; its handle is `.kernel.ptr`."""
    key = (kernel, device)
    found = _loaded.get(key)
    if found is not None:
        return found
    import cupy

    file = cubin_file(kernel, arch_of(device))
    with _lock, cupy.cuda.Device(device):
        if key not in _loaded:
            _loaded[key] = cupy.RawModule(path=str(file)).get_function(kernel.entry)
        return _loaded[key]


def zeros(size: int, device: int) -> Any:
    """Return memory of `size` bytes on a GPU, all of them 0, as CuPy's `MemoryPointer`."""
    import cupy

    with cupy.cuda.Device(device):
        memory = cupy.cuda.alloc(size)
        memory.memset(0, size)
        # The kernels that use it run on streams that do not wait for this one.
        cupy.cuda.Stream.null.synchronize()
    return memory


@cache
def arch_of(device: int) -> Arch:
    """Return what plans need to know of the GPU number `device`."""
    import cupy

    facts = cupy.cuda.runtime.getDeviceProperties(device)
    capability = f"{facts['major']}{facts['minor']}"
    return Arch(
        name=f"sm_{capability}a" if capability == "90" else f"sm_{capability}",
        sm_count=int(facts["multiProcessorCount"]),
        threads_per_sm=int(facts["maxThreadsPerMultiProcessor"]),
    )


def cache_folder() -> Path:
    """Return the folder of compiled kernels: `$XDG_CACHE_HOME/onnxfuse`, by default `~/.cache/onnxfuse`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onnxfuse"


def _key(kernel: KernelSource, arch: Arch) -> str:
    facts = (kernel.text, *kernel.flags, arch.name, *map(str, _nvrtc().getVersion()))
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()


def _is_cubin(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(_ELF)) == _ELF
    except OSError:  # not there, or not ours to read: it is compiled, and writing tells what is wrong
        return False


def _write(file: Path, cubin: bytes) -> None:
    """Write atomically: other processes see the whole file or none."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        with os.fdopen(handle, "wb") as stream:
            stream.write(cubin)
        Path(temporary).replace(file)
    except OSError as error:
        raise KernelError(
            f"cannot keep compiled kernels in {file.parent}: {error.strerror}",
            "set XDG_CACHE_HOME to a folder that can be written",
        ) from error


@cache
def _nvrtc() -> Any:
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        raise KernelError(
            f"NVRTC, the CUDA compiler library, cannot be loaded: {error}",
            "pip install 'onnxfuse[cuda]'",
        ) from error
    return nvrtc
