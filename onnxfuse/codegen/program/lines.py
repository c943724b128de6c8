"""Functions of a quantized value that are lines: what QuantizeLinear makes of it under another scale.

A file has a QuantizeLinear and a DequantizeLinear between a convolution and its Relu, and a QuantizeLinear after it. By
their definition that is a multiplication, a bound and a division that rounds; as the value is one of at most 256
numbers, it is one multiplication, where that gives the same for each of them.

DQ, Relu, Q -> round(n * slope + offset), within the bounds
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.codegen.program.builder import Term
from onnxfuse.codegen.program.program import Apply, Value
from onnxfuse.codegen.program.whole_numbers import constant
from onnxfuse.ops import scalar

Numbers = np.ndarray


@dataclass(frozen=True)
class Line:
    """round(n * slope + offset), from `low` to `high`, in float32 by one multiply-add: `math::line`."""

    slope: float
    offset: float
    low: float
    high: float

    def at(self, n: Numbers) -> Numbers:
        """Return the nearest whole numbers without the bounds, as `math::line` rounds them.

        A product of a number of 9 bits is exact in float64; without an offset it is rounded but once.
        """
        exact = n.astype(np.float64) * np.float64(np.float32(self.slope)) + np.float64(np.float32(self.offset))
        return np.asarray(np.rint(exact if self.offset == 0 else exact.astype(np.float32)), np.float64)

    def within(self, n: Numbers) -> Numbers:
        """Return the whole numbers, within the bounds."""
        bounded: Numbers = np.clip(self.at(n), self.low, self.high)
        return bounded

    def of(self, number: Term, known: tuple[float, float] | None) -> Term:
        """Return the line of a term; without a comparison where what is known of the term is enough for the bounds."""
        ends = None if known is None else self.at(np.array(known))
        inside = ends is not None and self.low <= ends.min() and ends.max() <= self.high
        if inside and (self.slope, self.offset) == (1, 0):
            return number
        function = scalar.line_inside if inside else scalar.line
        return number.apply(function, number, self.slope, self.offset, self.low, self.high)


def line_through(n: Numbers, results: Numbers, quotients: Numbers) -> Line | None:
    """Return the line on which all results lie; None if there is none.

    `results` are whole numbers, one for each number `n`; `quotients` what was rounded to them, but for the bounds and a
    zero point.
    """
    low, high = float(results.min()), float(results.max())
    (inside,) = np.nonzero((low < results) & (results < high))
    if inside.size < 2:
        return None
    first, last = inside[np.argmin(n[inside])], inside[np.argmax(n[inside])]
    slope = float(np.float32((quotients[last] - quotients[first]) / (float(n[last]) - float(n[first]))))
    zero = float(results[first]) - float(np.rint(quotients[first]))
    offset = float(np.float32(quotients[first] + zero - slope * float(n[first])))
    # Two equal scales give a quotient beside 1, and zero points an offset beside a whole number.
    slopes, offsets = ({float(np.rint(v)): None, v: None} for v in (slope, offset))
    candidates = (Line(s, o, low, high) for s in slopes for o in offsets)
    return next((line for line in candidates if line.slope != 0 and np.array_equal(line.within(n), results)), None)


def narrowed(values: Sequence[Value], steps: Value, line: Line) -> tuple[float, float] | None:
    """Return the bounds that are left of `steps` of a scale, which `line` alone reads.

    Beyond a number from which on the line has reached a bound, all numbers are as that one: the steps are clipped there
    once, and the line needs no bounds. None if they are no steps of a scale, or the line stays as it is.
    """
    if not isinstance(steps, Apply) or steps.op != scalar.steps:
        return None
    low, high = (constant(values, a) for a in steps.args[2:])
    if low is None or high is None:
        return None
    n = np.arange(low, high + 1)
    unbounded = line.at(n)
    kept = n[(line.low <= unbounded) & (unbounded <= line.high)]
    if not kept.size:
        return None
    first, last = float(kept[0]), float(kept[-1])
    return (first, last) if np.array_equal(line.within(n), line.at(np.clip(n, first, last))) else None
