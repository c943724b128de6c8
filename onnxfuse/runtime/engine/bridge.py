"""Access to the engine, the library that an install without a C++ compiler lacks."""

from functools import cache
from pathlib import Path

from onnxfuse.runtime.engine.engine import Engine
from onnxfuse.support.errors import DeviceError

LIBRARY = Path(__file__).parents[1] / "libonnxfuse.so"


def bridge_missing() -> str | None:
    """Return why the engine is not there, in one line; None if it is."""
    if not LIBRARY.exists():
        return f"the engine is not built (no {LIBRARY})"
    try:
        _opened(LIBRARY)
    except OSError as error:
        return f"the engine does not load ({error})"
    return None


def bridge() -> Engine:
    """Return the engine; DeviceError says why it is not there and how to get it."""
    missing = bridge_missing()
    if missing is not None:
        raise DeviceError(
            f"fused kernels cannot run: {missing}",
            "Install onnxfuse's wheel, which has it built; from source, install a C++17 compiler (for instance: "
            "apt install g++), then onnxfuse again: pip install --force-reinstall --no-deps onnxfuse. "
            "Without it the model runs on providers=['CPUExecutionProvider'].",
        )
    return _opened(LIBRARY)


@cache
def _opened(path: Path) -> Engine:
    return Engine(path)


def calls() -> dict[str, int]:
    """Return how often each fused op was served as a kernel in this process, since the start or the last reset.

    One without elements is served by launching nothing. Ops that were registered and never called count 0. Replays of a
    CUDA graph are not calls.
    """
    return bridge().calls()


def launches() -> dict[str, int]:
    """Return how often each fused op's kernel was launched in this process, since the start or the last reset.

    Ops that were registered and never launched count 0. Replays of a CUDA graph are not launches.
    """
    return bridge().launches()


def reset_counts() -> None:
    """Set the calls and launches of every op to zero."""
    bridge().reset_counts()
