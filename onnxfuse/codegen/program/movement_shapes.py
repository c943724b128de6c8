"""Shapes of moved data: the result's shape for the operands' shapes, of integers known or traced.

Conditions on extents are combined by `both`, `either` and `selected`; the only branch is `want`. So one answer holds
for all extents while a program is recorded, unless the recording is `deciding`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import singledispatch

from onnxfuse import ops
from onnxfuse.codegen.program.movement import (
    Alike,
    Channelled,
    Concatenated,
    DepthToSpace,
    Enlarged,
    Expanded,
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
)
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic.branching import larger, smaller, want
from onnxfuse.symbolic.strides import Shape
from onnxfuse.symbolic.traced_numbers import both, either, selected


def broadcast(shapes: Sequence[Shape], refusal: Callable[[], str] | None = None) -> Shape:
    """Return the broadcast of these shapes by NumPy's rule."""
    refusal = refusal or (lambda: f"shapes {', '.join(map(str, shapes))} do not broadcast")
    rank = max(map(len, shapes), default=0)
    found: list[int] = [1] * rank
    for shape in shapes:
        for place, n in enumerate(shape, rank - len(shape)):
            fits = either(either(found[place] == 1, n == 1), found[place] == n)
            want(fits, refusal)
            found[place] = selected(n == 1, found[place], n)
    return tuple(found)


@singledispatch
def moved(how: Movement, shapes: tuple[Shape, ...]) -> Shape:
    """Return the result shape of a movement."""
    raise AssertionError(f"no shape of {how}")


@moved.register(Transposed)
def _(how: Transposed, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    return tuple(of[a] for a in permutation(how, len(of)))


@moved.register(Reshaped)
def _(how: Reshaped, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    copied = [n == 0 and how.zero_copies for n in how.target]
    want(not any(copied[len(of) :]), lambda: f"Reshape of {of} to {how.target}")
    extents: list[int] = [of[d] if copy else n for d, (n, copy) in enumerate(zip(how.target, copied, strict=True))]
    total = math.prod(of)
    if -1 in how.target:
        left = how.target.index(-1)
        known = math.prod(n for d, n in enumerate(extents) if d != left)
        want(known != 0, lambda: f"Reshape of {of} to {how.target}")
        extents[left] = total // known
    want(math.prod(extents) == total, lambda: f"Reshape of {of} to {how.target}")
    return tuple(extents)


@moved.register(Alike)
def _(how: Alike, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    want(math.prod(of) == math.prod(shapes[1]), lambda: f"Reshape of {of} to {shapes[1]}")
    return shapes[1]


@moved.register(Channelled)
def _(how: Channelled, shapes: tuple[Shape, ...]) -> Shape:
    _want_rank(shapes[0], 1, "a weight by channel")
    return (*shapes[0], *(1,) * (len(shapes[1]) - 2))


@moved.register(Grouped)
def _(how: Grouped, shapes: tuple[Shape, ...]) -> Shape:
    of, groups = shapes[0], how.groups
    want(len(of) > 1 and groups > 0 and of[1] % groups == 0, lambda: f"{groups} groups of shape {of}")
    return of[0], groups, math.prod(of[1:]) // groups


@moved.register(Flattened)
def _(how: Flattened, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    inner = how.axis + len(of) if how.axis < 0 else how.axis
    want(0 <= inner <= len(of), lambda: f"Flatten at axis {inner} of a value of rank {len(of)}")
    return math.prod(of[:inner]), math.prod(of[inner:])


@moved.register(Squeezed)
def _(how: Squeezed, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    gone = [d for d, n in enumerate(of) if n == 1] if how.axes is None else [axis_of(a, len(of)) for a in how.axes]
    for d in gone:
        want(of[d] == 1, lambda: f"Squeeze of axes {gone} of shape {of}")
    return tuple(n for d, n in enumerate(of) if d not in gone)


@moved.register(Unsqueezed)
def _(how: Unsqueezed, shapes: tuple[Shape, ...]) -> Shape:
    rank = len(shapes[0]) + len(how.axes)
    new, rest = {*_different(how.axes, rank, ops.Unsqueeze)}, iter(shapes[0])
    return tuple(1 if d in new else next(rest) for d in range(rank))


@moved.register(Expanded)
def _(how: Expanded, shapes: tuple[Shape, ...]) -> Shape:
    to = tuple(
        n if isinstance(n, int) else shapes[n.operand][axis_of(n.axis, len(shapes[n.operand]))] // n.by
        for n in how.target
    )
    return broadcast((shapes[0], to), lambda: f"Expand of {shapes[0]} to {list(to)}")


@moved.register(Sliced)
def _(how: Sliced, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    extents = list(of)
    for cut, axis in zip(how.cuts, _different([c.axis for c in how.cuts], len(of), ops.Slice), strict=True):
        extents[axis] = sliced(cut, of[axis])[1]
    return tuple(extents)


@moved.register(SplitOutput)
def _(how: SplitOutput, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    axis = axis_of(how.axis, len(of))
    return (*of[:axis], parted(how, of[axis])[how.number], *of[axis + 1 :])


@moved.register(Picked)
def _(how: Picked, shapes: tuple[Shape, ...]) -> Shape:
    of, at = shapes[0], how.at
    axis = axis_of(how.axis, len(of))
    want(either(at >= 0, of[axis] + at >= 0), lambda: f"Gather of element {at} of axis {axis}, which has {of[axis]}")
    want(at < of[axis], lambda: f"Gather of element {at} of axis {axis}, which has {of[axis]}")
    return (*of[:axis], *of[axis + 1 :])


@moved.register(Gathered)
def _(how: Gathered, shapes: tuple[Shape, ...]) -> Shape:
    of, runs = shapes[0], how.runs
    axis = axis_of(how.axis, len(of))
    ends = [end for r in runs for end in (r.start, r.start + r.step * (r.length - 1))]
    last = max(ends, default=-1)
    want(min(ends, default=0) >= 0, lambda: f"Gather beyond the {of[axis]} elements of axis {axis}")
    want(last < of[axis], lambda: f"Gather beyond the {of[axis]} elements of axis {axis}")
    return (*of[:axis], sum(r.length for r in runs), *of[axis + 1 :])


@moved.register(LookedUp)
def _(how: LookedUp, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    want(len(of) > 0, lambda: "rows of a table of rank 0")
    return (*shapes[1], *of[1:])


@moved.register(Concatenated)
def _(how: Concatenated, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    axis = axis_of(how.axis, len(of))
    for shape in shapes:
        want(len(shape) == len(of), lambda: f"Concat of shapes {', '.join(map(str, shapes))}")
        for d, n in enumerate(shape):
            want(d == axis or n == of[d], lambda: f"Concat of shapes {', '.join(map(str, shapes))}")
    return (*of[:axis], sum(s[axis] for s in shapes), *of[axis + 1 :])


@moved.register(Padded)
def _(how: Padded, shapes: tuple[Shape, ...]) -> Shape:
    for n in shapes[1]:
        want(n == 1, lambda: f"Pad with a number of shape {shapes[1]}")
    around = margins(how, len(shapes[0]))
    return tuple(n + sum(around.get(d, (0, 0))) for d, n in enumerate(shapes[0]))


@moved.register(Repeated)
def _(how: Repeated, shapes: tuple[Shape, ...]) -> Shape:
    of, factors = shapes[0], how.factors
    _want_rank(of, len(factors), ops.Resize)
    return tuple(n * f for n, f in zip(of, factors, strict=True))


@moved.register(Enlarged)
def _(how: Enlarged, shapes: tuple[Shape, ...]) -> Shape:
    of, sizes = shapes[0], how.sizes
    _want_rank(of, len(sizes), ops.Resize)
    for m, n in zip(of, sizes, strict=True):
        want(
            both(n % larger(m, 1) == 0, either(n == 0, m > 0)),
            lambda: f"Resize of {of} to {sizes}, expected multiples",
        )
    return sizes


@moved.register(DepthToSpace)
def _(how: DepthToSpace, shapes: tuple[Shape, ...]) -> Shape:
    of, block = shapes[0], how.block
    _want_rank(of, 4, ops.DepthToSpace)
    want(block > 0 and of[1] % block**2 == 0, lambda: f"DepthToSpace of {of} in blocks of {block}")
    return of[0], of[1] // block**2, of[2] * block, of[3] * block


@moved.register(SpaceToDepth)
def _(how: SpaceToDepth, shapes: tuple[Shape, ...]) -> Shape:
    of, block = shapes[0], how.block
    _want_rank(of, 4, ops.SpaceToDepth)
    want(
        block > 0 and both(of[2] % block == 0, of[3] % block == 0),
        lambda: f"SpaceToDepth of {of} in blocks of {block}",
    )
    return of[0], of[1] * block**2, of[2] // block, of[3] // block


def axis_of(axis: int, rank: int) -> int:
    """Return a non-negative axis."""
    found = axis + rank if axis < 0 else axis
    want(0 <= found < rank, lambda: f"axis {axis} of a value of rank {rank}")
    return found


def sliced(cut: SliceRange, extent: int) -> tuple[int, int]:
    """Return the start and length of a slice, with Python's semantics, as expressions."""
    want(cut.step != 0, lambda: "Slice in steps of 0")
    low, high = (0, extent) if cut.step > 0 else (-1, extent - 1)

    def inside(n: int) -> int:
        return larger(n + extent, low) if n < 0 else smaller(n, high)

    start, end = inside(cut.start), inside(cut.end)
    steps = -(-(end - start) // cut.step) if cut.step > 0 else -(-(start - end) // -cut.step)
    return start, larger(steps, 0)


def parted(part: SplitOutput, extent: int) -> tuple[int, ...]:
    """Return the extents of a Split's outputs along its axis."""
    size = -(-extent // part.parts)
    sizes = part.sizes or (*(size for _ in range(part.parts - 1)), extent - size * (part.parts - 1))
    told = len(sizes) == part.parts and min(sizes[:-1], default=0) >= 0
    want(told and both(sum(sizes) == extent, sizes[-1] >= 0), lambda: f"Split of {extent} into {list(sizes)}")
    return sizes


def margins(padded: Padded, rank: int) -> dict[int, tuple[int, int]]:
    """Return the padding before and after each padded axis."""
    axes = tuple(range(rank)) if padded.axes is None else _different(padded.axes, rank, ops.Pad)
    want(len(axes) == len(padded.before), lambda: f"Pad of {plural(padded.before, 'axis')} of a value of rank {rank}")
    around = dict(zip(axes, zip(padded.before, padded.after, strict=True), strict=True))
    want(min((n for pair in around.values() for n in pair), default=0) >= 0, lambda: "Pad that crops")
    return {axis: pair for axis, pair in around.items() if pair != (0, 0)}


def permutation(how: Transposed, rank: int) -> tuple[int, ...]:
    """Return the axis of the operand for each axis of the result."""
    perm = tuple(reversed(range(rank))) if how.perm is None else how.perm
    want(sorted(perm) == list(range(rank)), lambda: f"Transpose by {list(perm)} of a value of rank {rank}")
    return perm


def _different(axes: Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """Return the non-negative axes; raises if one occurs twice."""
    found = tuple(axis_of(a, rank) for a in axes)
    want(len(set(found)) == len(found), lambda: f"{what} along axes {list(axes)} of a value of rank {rank}")
    return found


def _want_rank(of: Shape, rank: int, what: str) -> None:
    want(len(of) == rank, lambda: f"{what} of a value of rank {len(of)}, expected {rank}")
