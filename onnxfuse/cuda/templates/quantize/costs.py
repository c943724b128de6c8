"""Measured sizes of dynamic quantization; their files say what was measured."""

from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.planning.arch import Arch


@dataclass(frozen=True)
class QuantizeCosts:
    """Sizes by which a value and its extremes are shared out."""

    threads: int
    """Threads per block."""
    most_threads: int
    """Threads per block of values that fill two such blocks of each multiprocessor."""
    vectors: int
    """Maximum vectors of a thread that quantizes."""
    pass_blocks: int
    """Blocks per multiprocessor of the pass that reads a value for its range alone."""
    most_parts: int
    """Parts of the extremes that each block of the last launch combines by itself."""
    combined: int
    """Parts that a launch makes of more."""


def costs_of(arch: Arch) -> QuantizeCosts:
    """Return the sizes of the template on an architecture."""
    return tables.section(arch.name, "quantize", QuantizeCosts)
