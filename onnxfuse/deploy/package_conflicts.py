"""Packages that hide or replace each other's CUDA libraries: two of ONNX Runtime, two of cuDNN, torch for CUDA 12.

The packages of one pair unpack files of the same name into the same folder, and pip neither warns nor restores them.
"""

import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CUDA = 13
"""Major version of CUDA that ONNX Runtime's wheels and the kernels are built with."""

ONNXRUNTIME = "onnxruntime" if sys.platform == "darwin" else "onnxruntime-gpu"
"""The package of ONNX Runtime here: for macOS there is none with CUDA."""

SAME_FILES = (
    ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia/cudnn/lib/libcudnn.so.9"),
    ("cupy-cuda12x", "cupy-cuda13x", "the module cupy"),
)
"""A package for CUDA 12, the one for CUDA 13, and what both install."""

_TORCH_CUDA = re.compile(r"^cuda\b[^=]*= *['\"](\d+)\.(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Conflict:
    """Packages that do not work together."""

    what: str
    fact: str
    mend: str


def installed(name: str) -> str | None:
    """Return the version of an installed package, None for one that is not."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def conflicts() -> Iterator[Conflict]:
    """Yield each conflict among the installed packages."""
    yield from _two_onnxruntimes()
    for old, new, shared in SAME_FILES:
        if installed(old) and installed(new):
            yield Conflict(
                old, f"{installed(old)}: installs {shared}, as {new} {installed(new)} does: the last one is used",
                f"pip uninstall {old} {new} && pip install {new}",
            )  # fmt: skip
        elif old == "cupy-cuda12x" and installed(old):
            yield Conflict(old, f"{installed(old)} is for CUDA 12", f"pip uninstall {old} && pip install {new}")
    yield from _torch()


def _two_onnxruntimes() -> Iterator[Conflict]:
    import onnxruntime

    plain, gpu = installed("onnxruntime"), installed("onnxruntime-gpu")
    if ONNXRUNTIME == "onnxruntime":
        return
    again = "pip uninstall onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
    if plain and not gpu:
        yield Conflict("onnxruntime", f"{plain}: is the package without CUDA", again)
    elif plain and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        yield Conflict("onnxruntime", f"{plain}: hides the CUDA provider of onnxruntime-gpu", again)
    elif plain and onnxruntime.__version__ != gpu:
        yield Conflict("onnxruntime", f"{plain} has replaced files of onnxruntime-gpu {gpu}", again)
    built = f"{getattr(onnxruntime, 'cuda_version', '')}"
    if gpu and built and int(built.split(".")[0]) < CUDA:
        yield Conflict(
            "onnxruntime-gpu", f"{gpu} is built for CUDA {built}; fused kernels need CUDA {CUDA}",
            "pip install --upgrade --force-reinstall onnxruntime-gpu, from an index with the build for CUDA 13",
        )  # fmt: skip


def _torch() -> Iterator[Conflict]:
    built = torch_cuda()
    if built is not None and built[0] < CUDA:
        yield Conflict(
            "torch", f"{installed('torch')} is built for CUDA {built[0]}.{built[1]}: where it is imported before a "
            "session is opened, ONNX Runtime gets its cuDNN",
            "install the torch that is built for CUDA 13, or import torch in another process",
        )  # fmt: skip


def torch_cuda() -> tuple[int, int] | None:
    """Return the version of CUDA that the installed torch is built for, without importing it; None without CUDA."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).with_name("version.py")
    match = _TORCH_CUDA.search(file.read_text(encoding="utf-8")) if file.exists() else None
    return None if match is None else (int(match[1]), int(match[2]))
