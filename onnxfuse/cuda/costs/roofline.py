"""Estimated time of a kernel by its memory traffic and its operations (the roofline model, Williams et al. 2009)."""

import math
from dataclasses import dataclass

from onnxfuse.cuda.costs.tables import Bandwidth, ClockTime, OperationSpeed


@dataclass(frozen=True)
class Roofline:
    """How fast a kind of kernel is, where times do not decide among its variants."""

    start: ClockTime
    """Microseconds that a launch takes besides."""
    bandwidth: Bandwidth
    """Terabytes per second that it reads and writes: more than the memory's where they are in the cache."""
    operations: OperationSpeed = math.inf
    """Floating-point operations in 10^12 per second, a multiply-add is two; without it they are no limit."""

    def microseconds(self, size: int, operations: float = 0.0) -> float:
        """Return the time of a launch that moves so many bytes and computes so much."""
        return self.start + max(size / (self.bandwidth * 1e6), operations / (self.operations * 1e6))
