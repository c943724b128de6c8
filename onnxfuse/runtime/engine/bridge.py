"""Access to the native engine, the shared library that is missing after an install without a C++ compiler."""

from functools import cache
from pathlib import Path

from onnxfuse.runtime.engine.engine import Engine
from onnxfuse.support.errors import DeviceError

LIBRARY = Path(__file__).parents[1] / "libonnxfuse.so"


def bridge_missing() -> str | None:
    """Return in one line why the engine is unavailable; None if it is available."""
    if not LIBRARY.exists():
        return f"the engine is not built (no {LIBRARY})"
    try:
        _opened(LIBRARY)
    except OSError as error:
        return f"the engine does not load ({error})"
    return None


def bridge() -> Engine:
    """Return the engine. Raises DeviceError with the reason and the way to install it if it is unavailable."""
    missing = bridge_missing()
    if missing is not None:
        raise DeviceError(
            f"fused kernels cannot run: {missing}",
            "Install onnxfuse's wheel, which includes it; from source, install a C++17 compiler (for instance: "
            "apt install g++), then onnxfuse again: pip install --force-reinstall --no-deps onnxfuse. "
            "Without it the model runs on providers=['CPUExecutionProvider'].",
        )
    return _opened(LIBRARY)


@cache
def _opened(path: Path) -> Engine:
    return Engine(path)


def calls() -> dict[str, int]:
    """Return how many calls of each fused op ran as its kernel in this process, since the start or the last reset.

    A call on tensors without elements counts although nothing is launched. Registered ops that were never called count
    0. Replays of a CUDA graph are not counted.
    """
    return bridge().calls()


def launches() -> dict[str, int]:
    """Return how many kernels each fused op launched in this process, since the start or the last reset.

    Registered ops that never launched count 0. Replays of a CUDA graph are not counted.
    """
    return bridge().launches()


def reset_counts() -> None:
    """Reset the call and launch counts of every op to zero."""
    bridge().reset_counts()
