"""Fuse ONNX models for NVIDIA GPUs: fewer kernels, the same numbers, proven.

    import onnx, onnxfuse

    onnx.save(onnxfuse.optimize("in.onnx"), "out.onnx")
    session = onnxfuse.session("out.onnx")

Importing this module imports neither ONNX Runtime nor CuPy; the functions do, when they need them. It imports next to
nothing at all: until the first line of a command runs (`onnxfuse.cli`), Python answers ^C by a traceback.
"""

from __future__ import annotations

from onnxfuse.support.errors import (
    CrashError,
    DeviceError,
    KernelError,
    ModelError,
    OnnxfuseError,
    RequirementError,
    RuleError,
    UsageError,
)
from onnxfuse.support.version import VERSION

TYPE_CHECKING = False  # what `typing` calls so, without importing it
if TYPE_CHECKING:
    from typing import Any

    from onnxfuse._making import compile, dump, explain, export_library, guard, optimize, tune, unfuse
    from onnxfuse._running import bench, ci, explain_graph, profile, register, runner, session, verify, view
    from onnxfuse.api.request.options import Options

__version__ = VERSION

MAKING = ("compile", "dump", "explain", "export_library", "guard", "optimize", "tune", "unfuse")
"""Functions that make models; the others run them."""


def __getattr__(name: str) -> Any:
    """Return a function, or `Options`: its module is imported when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'onnxfuse' has no attribute '{name}'")
    import importlib

    module = "api.request.options" if name == "Options" else "_making" if name in MAKING else "_running"
    globals()[name] = getattr(importlib.import_module(f"onnxfuse.{module}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    """Return what there is for callers: what completion offers."""
    return [*__all__, "__version__"]


__all__ = [
    "CrashError",
    "DeviceError",
    "KernelError",
    "ModelError",
    "OnnxfuseError",
    "Options",
    "RequirementError",
    "RuleError",
    "UsageError",
    "bench",
    "ci",
    "compile",
    "dump",
    "explain",
    "explain_graph",
    "export_library",
    "guard",
    "optimize",
    "profile",
    "register",
    "runner",
    "session",
    "tune",
    "unfuse",
    "verify",
    "view",
]
