"""Measured speed of memory-bound kernels; their files say what was measured."""

from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.roofline import Roofline
from onnxfuse.cuda.planning.arch import Arch


@dataclass(frozen=True)
class MemoryTimes:
    """How fast elementwise work is, and reductions with what surrounds them."""

    pointwise: Roofline
    row: Roofline

    def of(self, reduces: bool) -> Roofline:
        """Return the times of a kernel that reduces, or of one that does not."""
        return self.row if reduces else self.pointwise


def times_of(arch: Arch) -> MemoryTimes:
    """Return how fast memory-bound kernels are on an architecture."""
    return tables.section(arch.name, "times.memory_bound", MemoryTimes)
