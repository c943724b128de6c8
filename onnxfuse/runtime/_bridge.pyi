"""The native bridge (bridge.cpp): registers fused ops with ONNX Runtime and launches their kernels."""

from collections.abc import Iterable
from typing import Any

from onnxfuse.kernels import TensorMap
from onnxfuse.runtime.launch import Program, Row

API_VERSION: int
"""The ONNX Runtime API version whose function table is asked for."""
API_SLOTS: dict[str, int]
"""ONNX Runtime's name of each function used, and its place in the function table."""

def stage(rows: Iterable[Row]) -> list[int]:
    """Hold the rows for the registration that this thread asks ONNX Runtime for next; return the ops, for `forget`."""

def forget(ops: Iterable[int]) -> None:
    """Let go of what plans these ops, once no session has them: the options that they were registered in are gone."""

def encoded_tensor_maps(maps: Iterable[TensorMap], addresses: Iterable[int]) -> bytes:
    """Return what a launch passes between pointers and parameters: the maps, 128 bytes each, as the driver has them.

    `addresses`: the kernel's pointers, inputs and then outputs. Raises RuntimeError in the driver's words.
    """

def calls() -> dict[str, int]:
    """Return the calls of each registered op that came to their end since the start or the last reset."""

def launches() -> dict[str, int]:
    """Return the kernel launches of each registered op since the start or the last reset."""

def answers() -> dict[str, int]:
    """Return how many shapes of each registered op were answered by its programs, since the start or the last reset."""

def evaluated(program: Program, shapes: Iterable[tuple[int, ...]]) -> dict[str, Any] | None:
    """Return the fields of the launch that a program answers for these shapes, None where the planner has to be asked.

    Raises RuntimeError where the program's bytes are none of this version.
    """

def unanswered(tape: bytes, shapes: bytes, width: int) -> list[int]:
    """Return which of many shapes a tape does not answer, by their numbers; the GIL is free meanwhile.

    `shapes`: `width` int64 words for each, the rank and the extents of each input in turn. Raises RuntimeError where
    the bytes are no program of this version.
    """

def reset_counts() -> None:
    """Set every count to zero."""
