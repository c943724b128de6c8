"""Access to the native bridge, which an install without a C++ compiler lacks."""

import importlib
from types import ModuleType

from onnxfuse.model.errors import DeviceError

MODULE = "onnxfuse.runtime._bridge"


def bridge_missing() -> str | None:
    """Return why the native bridge is not there, in one line; None if it is."""
    try:
        importlib.import_module(MODULE)
    except ImportError as error:
        return f"the native bridge is not built ({error})"
    return None


def bridge() -> ModuleType:
    """Return the native bridge; DeviceError says why it is not there and how to get it."""
    missing = bridge_missing()
    if missing is not None:
        raise DeviceError(
            f"fused kernels cannot run: {missing}",
            "Install a C++17 compiler (for instance: apt install g++), then install onnxfuse again: "
            "pip install --force-reinstall --no-deps onnxfuse. "
            "Without it the model runs on providers=['CPUExecutionProvider'].",
        )
    return importlib.import_module(MODULE)


def calls() -> dict[str, int]:
    """Return how often each fused op was served as a kernel in this process, since the start or the last reset.

    One without elements is served by launching nothing. Ops that were registered and never called count 0. Replays of a
    CUDA graph are not calls.
    """
    return dict(bridge().calls())


def launches() -> dict[str, int]:
    """Return how often each fused op's kernel was launched in this process, since the start or the last reset.

    Ops that were registered and never launched count 0. Replays of a CUDA graph are not launches.
    """
    return dict(bridge().launches())


def reset_counts() -> None:
    """Set the calls and launches of every op to zero."""
    bridge().reset_counts()
