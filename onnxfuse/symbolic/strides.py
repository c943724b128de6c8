"""Shapes and strides: operands broadcast over one shape, with adjacent dimensions merged where all allow it."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from onnxfuse.symbolic import traced_numbers

Shape = tuple[int, ...]


@dataclass(frozen=True)
class StridedLayout:
    """A shape of minimal rank, and each operand's strides in it."""

    extents: Shape
    """Outermost first, at least one; none is 1 unless it is the only one."""
    strides: tuple[Shape, ...]
    """Strides of each operand along each dimension, in elements; 0 = broadcast."""

    @property
    def contiguous(self) -> Shape:
        """Strides of an operand with the full shape."""
        return row_major(self.extents)


def row_major(extents: Shape) -> Shape:
    """Return the strides of a dense tensor. Extents of 0 count as 1: nothing is ever read there."""
    return tuple(math.prod(max(n, 1) for n in extents[d + 1 :]) for d in range(len(extents)))


def padded(shape: Shape, rank: int) -> Shape:
    """Return `shape` with leading ones, up to `rank` dimensions."""
    return (1,) * (rank - len(shape)) + shape


def strides_in(shape: Shape, full: Shape) -> Shape:
    """Return the strides of a dense operand of `shape` broadcast over `full`."""
    own = padded(shape, len(full))
    return tuple(0 if n == 1 else s for n, s in zip(own, row_major(own), strict=True))


def strides_by(shape: Shape, full: Shape, order: tuple[int, ...]) -> Shape:
    """Return the strides of an operand stored in this axis order, outermost first; other axes are broadcast.

    >>> strides_by((4, 5, 6), (4, 5, 6), (1, 0, 2))
    (6, 24, 1)
    """
    own = padded(shape, len(full))
    steps = dict(zip(order, row_major(tuple(own[d] for d in order)), strict=True))
    return tuple(0 if n == 1 else steps[d] for d, n in enumerate(own))


def collapse(full: Shape, strides: tuple[Shape, ...]) -> StridedLayout:
    """Return the minimal layout: unit dimensions dropped, adjacent ones merged where every operand allows it.

    >>> collapse((4, 5, 6), ((30, 6, 1), (0, 0, 1)))
    StridedLayout(extents=(20, 6), strides=((6, 1), (0, 1)))
    """
    extents: list[int] = []
    columns: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(full):
        if n == 1:
            continue
        if extents and all(c[-1] == s[d] * n for c, s in zip(columns, strides, strict=True)):
            extents[-1] *= n
            for c, s in zip(columns, strides, strict=True):
                c[-1] = s[d]
        else:
            extents.append(n)
            for c, s in zip(columns, strides, strict=True):
                c.append(s[d])
    if not extents:
        return StridedLayout((1,), tuple((0,) for _ in strides))
    return StridedLayout(tuple(extents), tuple(tuple(c) for c in columns))


def vector_width(sizes: tuple[int, ...]) -> int:
    """Return the number of elements per vectorized access, for operands of these element sizes in bytes.

    The smallest type moves 16 bytes in one access, as long as the largest one needs at most two accesses. One-byte
    types next to larger ones (masks) do not widen it.
    """
    largest = max(sizes)
    smallest = min((s for s in sizes if s > 1), default=1)
    return max(16 // largest, min(16 // smallest, 32 // largest))


def divisor(extent: int, bits: int) -> tuple[int, int, int]:
    """Return (value, multiplier, shift) so that n // value = (high(n * multiplier) + n) >> shift, n < 2^(bits - 1).

    Granlund and Montgomery, "Division by invariant integers using multiplication", 1994.
    """
    shift = max(extent - 1, 0).bit_length()
    if traced_numbers.is_recorded(extent):
        return max(extent, 1), traced_numbers.divisor_multiplier(extent, bits), shift
    multiplier = ((1 << bits) * ((1 << shift) - extent)) // max(extent, 1) + 1
    return max(extent, 1), multiplier % (1 << bits), shift


def divisors(extents: Iterable[int], bits: int) -> list[int]:
    """Return a kernel's divisors as parameter words."""
    return [word for extent in extents for word in divisor(extent, bits)]


def slots(needed: Iterable[bool]) -> tuple[int, ...]:
    """Return for each operand its row of strides among the parameters, -1 if it needs none."""
    number = itertools.count()
    return tuple(next(number) if need else -1 for need in needed)


def rows(strides: Iterable[Shape], slots: Iterable[int], rank: int) -> list[int]:
    """Return the stride rows of operands that need one, as words; at least one."""
    words = [step for row, slot in zip(strides, slots, strict=True) if slot >= 0 for step in row]
    return words or [0] * rank
