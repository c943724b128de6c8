"""Index maps of movements: the operand index of each result element, which is in bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from itertools import accumulate

from onnxfuse.codegen.program.index_map import Bound, Index, Space, reshaped
from onnxfuse.codegen.program.movement import (
    WRAP,
    Concatenated,
    DepthToSpace,
    Enlarged,
    Expanded,
    Gathered,
    LookedUp,
    Movement,
    Padded,
    PaddedByItself,
    Picked,
    Repeated,
    Sliced,
    SpaceToDepth,
    SplitOutput,
    Transposed,
    View,
)
from onnxfuse.ops.shapes.extents import axis_of
from onnxfuse.ops.shapes.moved import permutation
from onnxfuse.symbolic.branching import deciding, remembered
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape


@dataclass(frozen=True)
class Piece:
    """Source of a result's element: `operand` at `coordinates`, where all `bounds` hold."""

    operand: int
    coordinates: tuple[Index, ...]
    bounds: tuple[Bound, ...] = ()


MOST = 2**62
"""Maximum elements of a value: no offset in it, and no intermediate product, exceeds 64 bits."""


@remembered(4096)
def shape(how: Movement, shapes: tuple[Shape, ...]) -> Shape:
    """Return the shape of the result for these shapes of the operands.

    Raises `UnsupportedError` if there is none, or if an element of the result would come from outside its operand: so
    every index that a kernel reads by `pieces` is in bounds.
    """
    made = _moved(how, shapes)
    if any(n < 0 for n in made) or math.prod(made) > MOST:
        raise UnsupportedError(f"a value of shape {made}")
    if not isinstance(how, LookedUp):  # its indices are known at run time, where the kernel checks each of them
        _want_inside(how, shapes, made)
    return made


def _moved(how: Movement, shapes: tuple[Shape, ...]) -> Shape:
    with deciding():
        return how.shape(shapes)


def _want_inside(how: Movement, shapes: tuple[Shape, ...], made: Shape) -> None:
    """Raise `UnsupportedError` unless each element of the result comes from within its operand."""
    if 0 in made:
        return
    space = Space()
    places = tuple(space.axis(n) for n in made)
    for piece in pieces(how, space, places, shapes):
        if any(space.holds(b) is False for b in piece.bounds):
            continue  # no elements
        for axis, (coordinate, extent) in enumerate(zip(piece.coordinates, shapes[piece.operand], strict=True)):
            low, high = space.range(space.resolved(coordinate), piece.bounds)
            if low < 0 or high >= extent:
                reads = f"element {low}" if low == high else f"elements {low} to {high}"
                raise UnsupportedError(f"{type(how).__name__.lower()}: {reads} of axis {axis}, which has {extent}")


@singledispatch
def pieces(how: Movement, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    """Return the sources of the result's element at coordinates `at`; at most one piece holds at a time.

    For `Padded` no piece holds in the margin.
    """
    raise AssertionError("no index map: lower_movement.check refuses it")


# ---- index map of each movement


@pieces.register(Transposed)
def _(how: Transposed, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    rank = len(shapes[0])
    inverse = {a: d for d, a in enumerate(permutation(how.perm, rank))}
    return (Piece(0, tuple(at[inverse[d]] for d in range(rank))),)


@pieces.register(View)
def _(how: View, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    return (Piece(0, reshaped(space, at, _moved(how, shapes), shapes[0])),)


@pieces.register(Expanded)
def _(how: Expanded, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    return (Piece(0, broadcast(at, shapes[0])),)


@pieces.register(Sliced)
def _(how: Sliced, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of, places = shapes[0], list(at)
    for cut in how.cuts:
        axis = axis_of(cut.axis, len(of))
        with deciding():
            start, _ = cut.part(of)
        places[axis] = places[axis] * cut.step + start
    return (Piece(0, tuple(places)),)


@pieces.register(SplitOutput)
def _(how: SplitOutput, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of = shapes[0]
    axis = axis_of(how.axis, len(of))
    with deciding():
        before = sum(how.extents(of)[: how.number])
    return (Piece(0, _shifted(at, axis, before)),)


@pieces.register(Picked)
def _(how: Picked, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of = shapes[0]
    axis = axis_of(how.axis, len(of))
    element = how.at + of[axis] if how.at < 0 else how.at
    return (Piece(0, (*at[:axis], Index((), element), *at[axis:])),)


@pieces.register(Gathered)
def _(how: Gathered, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    axis = axis_of(how.axis, len(shapes[0]))
    ends = accumulate(r.length for r in how.runs)
    return tuple(
        Piece(
            0,
            (*at[:axis], (at[axis] + (r.length - end)) * r.step + r.start, *at[axis + 1 :]),
            (Bound(at[axis], end - r.length, end),),
        )
        for end, r in zip(ends, how.runs, strict=True)
    )


@pieces.register(Concatenated)
def _(how: Concatenated, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    axis = axis_of(how.axis, len(shapes[0]))
    ends = accumulate(s[axis] for s in shapes)
    return tuple(
        Piece(n, _shifted(at, axis, s[axis] - end), (Bound(at[axis], end - s[axis], end),))
        for n, (s, end) in enumerate(zip(shapes, ends, strict=True))
    )


@pieces.register(Padded)
def _(how: Padded, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of, places, bounds = shapes[0], list(at), []
    for axis, (before, _) in how.margins(len(of)).items():
        places[axis] = at[axis] + -before
        bounds.append(Bound(at[axis], before, before + of[axis]))
    return (Piece(0, tuple(places), tuple(bounds)),)


@pieces.register(PaddedByItself)
def _(how: PaddedByItself, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of, places = shapes[0], list(at)
    for number, before, after in how.around:
        axis = axis_of(number, len(of))
        if before == after == 0:
            continue
        if how.mode == WRAP:
            places[axis] = space.divide(at[axis] + -before % of[axis], of[axis])[1]
        else:
            places[axis] = space.folded(at[axis] + -before, of[axis], how.mode)
    return (Piece(0, tuple(places)),)


@pieces.register(Repeated)
def _(how: Repeated, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    return (Piece(0, tuple(space.divide(c, f)[0] for c, f in zip(at, how.factors, strict=True))),)


@pieces.register(Enlarged)
def _(how: Enlarged, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    by = tuple(n // max(m, 1) for m, n in zip(shapes[0], how.sizes, strict=True))
    return (Piece(0, tuple(space.divide(c, f)[0] for c, f in zip(at, by, strict=True))),)


@pieces.register(DepthToSpace)
def _(how: DepthToSpace, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of, block = shapes[0], how.block
    (y, i), (x, j) = space.divide(at[2], block), space.divide(at[3], block)
    inside, depth = i * block + j, of[1] // block**2
    channel = at[1] * block**2 + inside if how.columns_first else inside * depth + at[1]
    return (Piece(0, (at[0], channel, y, x)),)


@pieces.register(SpaceToDepth)
def _(how: SpaceToDepth, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of, block = shapes[0], how.block
    inside, channel = space.divide(at[1], of[1])
    i, j = space.divide(inside, block)
    return (Piece(0, (at[0], channel, at[2] * block + i, at[3] * block + j)),)


# ---- axes and extents


def broadcast(at: tuple[Index, ...], of: Shape) -> tuple[Index, ...]:
    """Return the coordinates `at` mapped to an operand of shape `of` that is broadcast."""
    own = at[len(at) - len(of) :]
    return tuple(Index() if n == 1 else c for c, n in zip(own, of, strict=True))


def _shifted(at: tuple[Index, ...], axis: int, by: int) -> tuple[Index, ...]:
    return (*at[:axis], at[axis] + by, *at[axis + 1 :])
