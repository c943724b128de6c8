"""Store layout of a product whose output is reshaped and transposed, such as split heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.codegen.program import movement_maps
from onnxfuse.codegen.program.movement import Reshaped, Transposed
from onnxfuse.symbolic import strides
from onnxfuse.symbolic.branching import gcd
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

DIGITS = 3
"""Maximum digits of a row index, and of a column index."""
MOST = 2**32
"""Maximum elements of such an output, which are counted with 32 bits."""

NEITHER, COLUMNS, ROWS = range(3)
"""Which index is contiguous in the output, for 16-byte stores."""

Moves = tuple[Reshaped | Transposed, ...]


@dataclass(frozen=True)
class OutputDigit:
    """A digit of the mixed-radix row or column index."""

    extent: int
    """How many values it takes."""
    step: int
    """Output stride in elements."""


@dataclass(frozen=True)
class Stored:
    """Output offset of a cell: the digits of its row and column indices, innermost first, times their strides."""

    shape: Shape
    """Of the output."""
    rows: tuple[OutputDigit, ...]
    columns: tuple[OutputDigit, ...]

    @property
    def width(self) -> int:
        """Adjacent columns that are contiguous in the output, aligned to as many elements."""
        return _beside(*self.columns, *self.rows)

    @property
    def height(self) -> int:
        """The same for adjacent rows."""
        return _beside(*self.rows, *self.columns)

    def words(self, wide: int) -> tuple[int, ...]:
        """Return the kernel's `Layout`; `wide`: elements of 16 bytes."""
        numbers = [w for digits in (self.rows, self.columns) for w in _words(digits)]
        return (*numbers, COLUMNS if self.width % wide == 0 else ROWS if self.height % wide == 0 else NEITHER)


def _beside(first: OutputDigit, *others: OutputDigit) -> int:
    return gcd(first.extent, *(d.step for d in others)) if first.step == 1 else 1


def _words(digits: Sequence[OutputDigit]) -> list[int]:
    inner, middle, _ = digits
    return [
        *strides.divisor(inner.extent, 32), *strides.divisor(middle.extent, 32), *(d.step for d in digits),
    ]  # fmt: skip


def stored(full: Shape, moves: Moves) -> Stored:
    """Return the store layout of a product of shape `full`, [..., n]. Raises `UnsupportedError`."""
    n = full[-1]
    axes, shape = list(zip(full, strides.row_major(full), strict=True)), full
    turned = False
    for how in moves:
        shape = movement_maps.shape(how, (shape,))
        if isinstance(how, Transposed):
            if turned:
                raise UnsupportedError("a product's output that is transposed twice")
            perm = tuple(reversed(range(len(axes)))) if how.perm is None else how.perm
            axes, turned = [axes[a] for a in perm], True
        elif not turned:
            axes = list(zip(shape, strides.row_major(shape), strict=True))
    if 0 in full:  # nothing is stored
        return Stored(shape, (OutputDigit(1, 0),) * DIGITS, (OutputDigit(1, 0),) * DIGITS)
    if math.prod(full) >= MOST:
        raise UnsupportedError(f"an output of {math.prod(full)} elements that is written transposed")
    # From the innermost axis of the product to the outermost: elements, step in the product, step in the output.
    extents = tuple(extent for extent, _ in axes)
    placed = sorted(
        (way, extent, step) for (extent, way), step in zip(axes, strides.row_major(extents), strict=True) if extent > 1
    )
    if any(way < n < way * extent or (way >= n and way % n) for way, extent, _ in placed if n):
        raise UnsupportedError("a Reshape that cuts across the rows and columns of the product")
    columns, rows = ([(e, s) for w, e, s in placed if (w < n) == below] for below in (True, False))
    return Stored(shape, _digits(rows, "rows"), _digits(columns, "columns"))


def _digits(found: list[tuple[int, int]], what: str) -> tuple[OutputDigit, ...]:
    """Convert (extent, step) pairs, innermost first, to digits, merging contiguous neighbors."""
    extents, steps = ([pair[n] for pair in reversed(found)] for n in (0, 1))
    layout = strides.collapse(tuple(extents), (tuple(steps),))
    merged = list(zip(layout.extents, *layout.strides, strict=True))[::-1]
    if len(merged) > DIGITS:
        raise UnsupportedError(f"{what} of a product that are written in {len(merged)} ways, expected at most {DIGITS}")
    # An index below the extent of the first digit has only zeros above it.
    return tuple(OutputDigit(*pair) for pair in (*merged, *[(1, 0)] * (DIGITS - len(merged))))
