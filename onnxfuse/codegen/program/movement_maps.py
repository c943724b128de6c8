"""Shape inference and index maps of movements: the result's shape, and the operand index of each result element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import accumulate

from onnxfuse import ops
from onnxfuse.codegen.program.index_map import Bound, Index, Shape, Space, reshaped
from onnxfuse.codegen.program.movement import (
    Alike,
    Channelled,
    Concatenated,
    DepthToSpace,
    Enlarged,
    Expanded,
    Extent,
    Flattened,
    Gathered,
    Grouped,
    LookedUp,
    Movement,
    Padded,
    Picked,
    Repeated,
    Reshaped,
    Sliced,
    SliceRange,
    SpaceToDepth,
    SplitOutput,
    Squeezed,
    Transposed,
    Unsqueezed,
    View,
)
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic.branching import remembered
from onnxfuse.symbolic.element_types import UnsupportedError


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
    made = _shape(how, shapes)
    if any(n < 0 for n in made) or math.prod(made) > MOST:
        raise UnsupportedError(f"a value of shape {made}")
    if not isinstance(how, LookedUp):  # its indices are known at run time, where the kernel checks each of them
        _want_inside(how, shapes, made)
    return made


def _want_inside(how: Movement, shapes: tuple[Shape, ...], made: Shape) -> None:
    """Raise `UnsupportedError` unless each element of the result comes from within its operand."""
    if 0 in made:
        return
    space = Space()
    places = tuple(space.axis(n) for n in made)
    for piece in pieces(how, space, places, shapes):
        ranges = [(b, *space.range(b.index)) for b in piece.bounds]
        if any(max(b.low, least) > min(b.high - 1, greatest) for b, least, greatest in ranges):
            continue  # no elements
        for axis, (coordinate, extent) in enumerate(zip(piece.coordinates, shapes[piece.operand], strict=True)):
            low, high = space.range(space.resolved(coordinate), piece.bounds)
            if low < 0 or high >= extent:
                reads = f"element {low}" if low == high else f"elements {low} to {high}"
                raise UnsupportedError(f"{type(how).__name__.lower()}: {reads} of axis {axis}, which has {extent}")


@singledispatch
def _shape(how: Movement, shapes: tuple[Shape, ...]) -> Shape:
    raise AssertionError(f"no shape of {how}")


@singledispatch
def pieces(how: Movement, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    """Return the sources of the result's element at coordinates `at`; at most one piece holds at a time.

    For `Padded` no piece holds in the margin.
    """
    raise AssertionError("no index map: lower_movement.check refuses it")


# ---- shape and index map of each movement


@_shape.register(Transposed)
def _(how: Transposed, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    return tuple(of[a] for a in _perm(how, len(of)))


@pieces.register(Transposed)
def _(how: Transposed, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    rank = len(shapes[0])
    inverse = {a: d for d, a in enumerate(_perm(how, rank))}
    return (Piece(0, tuple(at[inverse[d]] for d in range(rank))),)


@pieces.register(View)
def _(how: View, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    return (Piece(0, reshaped(space, at, _shape(how, shapes), shapes[0])),)


@_shape.register(Reshaped)
def _(how: Reshaped, shapes: tuple[Shape, ...]) -> Shape:
    return _reshape(how.target, how.zero_copies, shapes[0])


@_shape.register(Alike)
def _(how: Alike, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    if math.prod(of) != math.prod(shapes[1]):
        raise UnsupportedError(f"Reshape of {of} to {list(shapes[1])}")
    return shapes[1]


@_shape.register(Channelled)
def _(how: Channelled, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    _want_rank(of, 1, "a weight by channel")
    return (*of, *(1,) * (len(shapes[1]) - 2))


@_shape.register(Grouped)
def _(how: Grouped, shapes: tuple[Shape, ...]) -> Shape:
    of, groups = shapes[0], how.groups
    if len(of) < 2 or groups < 1 or of[1] % groups:
        raise UnsupportedError(f"{groups} groups of shape {of}")
    return of[0], groups, math.prod(of[1:]) // groups


@_shape.register(Flattened)
def _(how: Flattened, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    axis = how.axis + len(of) if how.axis < 0 else how.axis
    if not 0 <= axis <= len(of):
        raise UnsupportedError(f"Flatten at axis {axis} of a value of rank {len(of)}")
    return math.prod(of[:axis]), math.prod(of[axis:])


@_shape.register(Squeezed)
def _(how: Squeezed, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    gone = [d for d, n in enumerate(of) if n == 1] if how.axes is None else [_axis(a, len(of)) for a in how.axes]
    if any(of[d] != 1 for d in gone):
        raise UnsupportedError(f"Squeeze of axes {gone} of shape {of}")
    return tuple(n for d, n in enumerate(of) if d not in gone)


@_shape.register(Unsqueezed)
def _(how: Unsqueezed, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    rank = len(of) + len(how.axes)
    new, rest = set(_different(how.axes, rank, ops.Unsqueeze)), iter(of)
    return tuple(1 if d in new else next(rest) for d in range(rank))


@_shape.register(Expanded)
def _(how: Expanded, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    target = tuple(n if isinstance(n, int) else _extent(n, shapes) for n in how.target)
    rank = max(len(of), len(target))
    pairs = list(zip((1,) * (rank - len(of)) + of, (1,) * (rank - len(target)) + target, strict=True))
    if any(b < 0 or (a != b and 1 not in (a, b)) for a, b in pairs):
        raise UnsupportedError(f"Expand of {of} to {list(target)}")
    return tuple(b if a == 1 else a for a, b in pairs)


@pieces.register(Expanded)
def _(how: Expanded, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    return (Piece(0, broadcast(at, shapes[0])),)


@_shape.register(Sliced)
def _(how: Sliced, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    extents = list(of)
    for cut, axis in zip(how.cuts, _different([c.axis for c in how.cuts], len(of), ops.Slice), strict=True):
        extents[axis] = len(_steps(cut, of[axis]))
    return tuple(extents)


@pieces.register(Sliced)
def _(how: Sliced, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of, moved = shapes[0], list(at)
    for cut in how.cuts:
        axis = _axis(cut.axis, len(of))
        steps = _steps(cut, of[axis])
        moved[axis] = moved[axis] * steps.step + steps.start
    return (Piece(0, tuple(moved)),)


@_shape.register(SplitOutput)
def _(how: SplitOutput, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    axis = _axis(how.axis, len(of))
    return (*of[:axis], _sizes(how, of[axis])[how.number], *of[axis + 1 :])


@pieces.register(SplitOutput)
def _(how: SplitOutput, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of = shapes[0]
    axis = _axis(how.axis, len(of))
    return (Piece(0, _shifted(at, axis, sum(_sizes(how, of[axis])[: how.number]))),)


@_shape.register(Picked)
def _(how: Picked, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    axis = _axis(how.axis, len(of))
    if not -of[axis] <= how.at < of[axis]:
        raise UnsupportedError(f"Gather of element {how.at} of axis {axis}, which has {of[axis]}")
    return (*of[:axis], *of[axis + 1 :])


@pieces.register(Picked)
def _(how: Picked, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of = shapes[0]
    axis = _axis(how.axis, len(of))
    element = how.at + of[axis] if how.at < 0 else how.at
    return (Piece(0, (*at[:axis], Index((), element), *at[axis:])),)


@_shape.register(Gathered)
def _(how: Gathered, shapes: tuple[Shape, ...]) -> Shape:
    of, runs = shapes[0], how.runs
    axis = _axis(how.axis, len(of))
    if any(not 0 <= end < of[axis] for r in runs for end in (r.start, r.start + r.step * (r.length - 1))):
        raise UnsupportedError(f"Gather beyond the {of[axis]} elements of axis {axis}")
    return (*of[:axis], sum(r.length for r in runs), *of[axis + 1 :])


@pieces.register(Gathered)
def _(how: Gathered, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    axis = _axis(how.axis, len(shapes[0]))
    ends = accumulate(r.length for r in how.runs)
    return tuple(
        Piece(
            0,
            (*at[:axis], (at[axis] + (r.length - end)) * r.step + r.start, *at[axis + 1 :]),
            (Bound(at[axis], end - r.length, end),),
        )
        for end, r in zip(ends, how.runs, strict=True)
    )


@_shape.register(LookedUp)
def _(how: LookedUp, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    _axis(0, len(of))
    return (*shapes[1], *of[1:])


@_shape.register(Concatenated)
def _(how: Concatenated, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    axis = _axis(how.axis, len(of))
    if any(len(s) != len(of) or s[:axis] + s[axis + 1 :] != of[:axis] + of[axis + 1 :] for s in shapes):
        raise UnsupportedError(f"Concat of shapes {', '.join(map(str, shapes))} along axis {axis}")
    return (*of[:axis], sum(s[axis] for s in shapes), *of[axis + 1 :])


@pieces.register(Concatenated)
def _(how: Concatenated, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    axis = _axis(how.axis, len(shapes[0]))
    ends = accumulate(s[axis] for s in shapes)
    return tuple(
        Piece(n, _shifted(at, axis, s[axis] - end), (Bound(at[axis], end - s[axis], end),))
        for n, (s, end) in enumerate(zip(shapes, ends, strict=True))
    )


@_shape.register(Padded)
def _(how: Padded, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    _want_rank(tuple(n for n in shapes[1] if n != 1), 0, "Pad with a number")
    around = _around(how, len(of))
    return tuple(n + sum(around.get(d, (0, 0))) for d, n in enumerate(of))


@pieces.register(Padded)
def _(how: Padded, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of, moved, bounds = shapes[0], list(at), []
    for axis, (before, _) in _around(how, len(of)).items():
        moved[axis] = at[axis] + -before
        bounds.append(Bound(at[axis], before, before + of[axis]))
    return (Piece(0, tuple(moved), tuple(bounds)),)


@_shape.register(Repeated)
def _(how: Repeated, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    _want_rank(of, len(how.factors), ops.Resize)
    return tuple(n * f for n, f in zip(of, how.factors, strict=True))


@pieces.register(Repeated)
def _(how: Repeated, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    return (Piece(0, tuple(space.divide(c, f)[0] for c, f in zip(at, how.factors, strict=True))),)


@_shape.register(Enlarged)
def _(how: Enlarged, shapes: tuple[Shape, ...]) -> Shape:
    of, sizes = shapes[0], how.sizes
    _want_rank(of, len(sizes), ops.Resize)
    if any(n % max(m, 1) for m, n in zip(of, sizes, strict=True)) or (0 in of and 0 not in sizes):
        raise UnsupportedError(f"Resize of {of} to {sizes}, expected multiples")
    return sizes


@pieces.register(Enlarged)
def _(how: Enlarged, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    by = tuple(n // max(m, 1) for m, n in zip(shapes[0], how.sizes, strict=True))
    return (Piece(0, tuple(space.divide(c, f)[0] for c, f in zip(at, by, strict=True))),)


@_shape.register(DepthToSpace)
def _(how: DepthToSpace, shapes: tuple[Shape, ...]) -> Shape:
    of, block = shapes[0], how.block
    _want_rank(of, 4, ops.DepthToSpace)
    if block < 1 or of[1] % block**2:
        raise UnsupportedError(f"DepthToSpace of {of[1]} channels in blocks of {block}")
    return of[0], of[1] // block**2, of[2] * block, of[3] * block


@pieces.register(DepthToSpace)
def _(how: DepthToSpace, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    of, block = shapes[0], how.block
    (y, i), (x, j) = space.divide(at[2], block), space.divide(at[3], block)
    inside, depth = i * block + j, of[1] // block**2
    channel = at[1] * block**2 + inside if how.columns_first else inside * depth + at[1]
    return (Piece(0, (at[0], channel, y, x)),)


@_shape.register(SpaceToDepth)
def _(how: SpaceToDepth, shapes: tuple[Shape, ...]) -> Shape:
    of, block = shapes[0], how.block
    _want_rank(of, 4, ops.SpaceToDepth)
    if block < 1 or of[2] % block or of[3] % block:
        raise UnsupportedError(f"SpaceToDepth of {of[2]}x{of[3]} in blocks of {block}")
    return of[0], of[1] * block**2, of[2] // block, of[3] // block


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


def _extent(number: Extent, shapes: tuple[Shape, ...]) -> int:
    shape = shapes[number.operand]
    return shape[_axis(number.axis, len(shape))] // number.by


def _axis(axis: int, rank: int) -> int:
    found = axis + rank if axis < 0 else axis
    if not 0 <= found < rank:
        raise UnsupportedError(f"axis {axis} of a value of rank {rank}")
    return found


def _different(axes: Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """Return the non-negative axes; raises if one occurs twice."""
    found = tuple(_axis(a, rank) for a in axes)
    if len(set(found)) < len(found):
        raise UnsupportedError(f"{what} along axes {list(axes)} of a value of rank {rank}")
    return found


def _want_rank(of: Shape, rank: int, what: str) -> None:
    if len(of) != rank:
        raise UnsupportedError(f"{what} of a value of rank {len(of)}, expected {rank}")


def _perm(how: Transposed, rank: int) -> tuple[int, ...]:
    perm = tuple(reversed(range(rank))) if how.perm is None else how.perm
    if sorted(perm) != list(range(rank)):
        raise UnsupportedError(f"Transpose by {list(perm)} of a value of rank {rank}")
    return perm


def _reshape(target: Shape, zero_copies: bool, of: Shape) -> Shape:
    if zero_copies and any(n == 0 and d >= len(of) for d, n in enumerate(target)):
        raise UnsupportedError(f"Reshape of {of} to {list(target)}")
    extents = [of[d] if n == 0 and zero_copies else n for d, n in enumerate(target)]
    known = math.prod(n for n in extents if n >= 0)
    total = math.prod(of)
    if -1 in extents and known:
        extents[extents.index(-1)] = total // known
    if math.prod(extents) != total or any(n < 0 for n in extents):
        raise UnsupportedError(f"Reshape of {of} to {list(target)}")
    return tuple(extents)


def _steps(cut: SliceRange, extent: int) -> range:
    """The elements that a slice selects: Python's semantics are ONNX's."""
    if not cut.step:
        raise UnsupportedError("Slice in steps of 0")
    return range(*slice(cut.start, cut.end, cut.step).indices(extent))


def _sizes(part: SplitOutput, extent: int) -> tuple[int, ...]:
    size = -(-extent // part.parts)
    sizes = part.sizes or (*(size for _ in range(part.parts - 1)), extent - size * (part.parts - 1))
    if sum(sizes) != extent or min(sizes) < 0 or len(sizes) != part.parts:
        raise UnsupportedError(f"Split of {extent} into {list(sizes)}")
    return sizes


def _shifted(at: tuple[Index, ...], axis: int, by: int) -> tuple[Index, ...]:
    return (*at[:axis], at[axis] + by, *at[axis + 1 :])


def _around(how: Padded, rank: int) -> dict[int, tuple[int, int]]:
    axes = tuple(range(rank)) if how.axes is None else _different(how.axes, rank, ops.Pad)
    if len(axes) != len(how.before):
        raise UnsupportedError(f"Pad of {plural(how.before, 'axis')} of a value of rank {rank}")
    pairs = zip(axes, zip(how.before, how.after, strict=True), strict=True)
    around = {a: pair for a, pair in pairs if pair != (0, 0)}
    if any(n < 0 for pair in around.values() for n in pair):
        raise UnsupportedError("Pad that crops")
    return around
