"""Symbolic shapes of a program's values, branching only on whether the op supports the inputs.

`BodyProgram.shapes` and `movement_maps.shape` compute the same for integers; while a program is recorded they branch at
each step, which would restrict the recorded answer. Here one answer holds for all extents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

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
from onnxfuse.codegen.program.program import (
    Apply,
    Attend,
    BodyProgram,
    Constant,
    Contraction,
    Input,
    Move,
    Reduce,
    Resample,
    SlidingWindow,
    reduced_axes,
)
from onnxfuse.codegen.program.window import Along, Resizing
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic.branching import larger, merged, smaller
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape
from onnxfuse.symbolic.traced_numbers import both, either, selected


def want(condition: Any, reason: Callable[[], str]) -> None:
    """Raise `UnsupportedError` unless a condition holds, the only branch on extents."""
    if not condition:
        raise UnsupportedError(reason())


def of_values(program: BodyProgram, input_shapes: tuple[Shape, ...]) -> dict[int, Shape]:
    """Return the shape of each value that some output depends on."""
    if len(input_shapes) != len(program.inputs):
        raise UnsupportedError(f"{plural(input_shapes, 'input shape')}, expected {len(program.inputs)}")
    shapes: dict[int, Shape] = {}
    for index in sorted(program.live()):
        match program.values[index]:
            case Input(index=number):
                shapes[index] = input_shapes[number]
            case Constant(shape=shape):
                shapes[index] = shape
            case Apply(args=args):
                shapes[index] = broadcast([shapes[a] for a in args])
            case Reduce() as reduce:
                of = shapes[reduce.arg]
                gone = reduced_axes(reduce, len(of))
                shapes[index] = tuple(1 if d in gone else n for d, n in enumerate(of))
            case Move(how=how, args=args):
                shapes[index] = moved(how, tuple(shapes[a] for a in args))
            case SlidingWindow() as window:
                shapes[index] = _seen(window, tuple(shapes[a] for a in window.args))
            case Contraction(args=(left, right)) as contract:
                seen = isinstance(program.values[left], SlidingWindow)
                shapes[index] = (_convolved if seen else _multiplied)(contract, shapes[left], shapes[right])
            case Resample(arg=arg, how=resizing):
                shapes[index] = _resampled(resizing, shapes[arg])
            case Attend() as attend:
                shapes[index] = _attended(attend, tuple(shapes[a] for a in attend.args))
    return shapes


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the broadcast of these shapes by NumPy's rule."""
    rank = max(map(len, shapes), default=0)
    found: list[int] = [1] * rank
    for shape in shapes:
        for place, n in enumerate(shape, rank - len(shape)):
            fits = either(either(found[place] == 1, n == 1), found[place] == n)
            want(fits, lambda: f"shapes {', '.join(map(str, shapes))} do not broadcast")
            found[place] = selected(n == 1, found[place], n)
    return tuple(found)


# ---- moved data


@singledispatch
def moved(how: Movement, shapes: tuple[Shape, ...]) -> Shape:
    """Return the result shape of a movement."""
    raise AssertionError(f"no shape of {how}")


@moved.register(Transposed)
def _(how: Transposed, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    return tuple(of[a] for a in (reversed(range(len(of))) if how.perm is None else how.perm))


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
    new, rest = {axis_of(a, rank) for a in how.axes}, iter(shapes[0])
    return tuple(1 if d in new else next(rest) for d in range(rank))


@moved.register(Expanded)
def _(how: Expanded, shapes: tuple[Shape, ...]) -> Shape:
    to = tuple(
        n if isinstance(n, int) else shapes[n.operand][axis_of(n.axis, len(shapes[n.operand]))] // n.by
        for n in how.target
    )
    return broadcast((shapes[0], to))


@moved.register(Sliced)
def _(how: Sliced, shapes: tuple[Shape, ...]) -> Shape:
    of = shapes[0]
    extents = list(of)
    for cut in how.cuts:
        axis = axis_of(cut.axis, len(of))
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
    want(either(at >= 0, of[axis] + at >= 0), lambda: f"Gather of element {at} of axis {axis} of {of}")
    want(at < of[axis], lambda: f"Gather of element {at} of axis {axis} of {of}")
    return (*of[:axis], *of[axis + 1 :])


@moved.register(Gathered)
def _(how: Gathered, shapes: tuple[Shape, ...]) -> Shape:
    of, runs = shapes[0], how.runs
    axis = axis_of(how.axis, len(of))
    last = max((max(r.start, r.start + r.step * (r.length - 1)) for r in runs), default=-1)
    want(last < of[axis], lambda: f"Gather of element {last} of axis {axis} of {of}")
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
    around = margins(how, len(shapes[0]))
    return tuple(n + sum(around.get(d, (0, 0))) for d, n in enumerate(shapes[0]))


@moved.register(Repeated)
def _(how: Repeated, shapes: tuple[Shape, ...]) -> Shape:
    of, factors = shapes[0], how.factors
    want(len(factors) == len(of), lambda: f"Resize of {of} by {factors}")
    return tuple(n * f for n, f in zip(of, factors, strict=True))


@moved.register(Enlarged)
def _(how: Enlarged, shapes: tuple[Shape, ...]) -> Shape:
    of, sizes = shapes[0], how.sizes
    want(len(sizes) == len(of), lambda: f"Resize of {of} to {sizes}")
    for m, n in zip(of, sizes, strict=True):
        want(
            both(n % larger(m, 1) == 0, either(n == 0, m > 0)),
            lambda: f"Resize of {of} to {sizes}, expected multiples",
        )
    return sizes


@moved.register(DepthToSpace)
def _(how: DepthToSpace, shapes: tuple[Shape, ...]) -> Shape:
    of, block = shapes[0], how.block
    want(len(of) == 4 and of[1] % block**2 == 0, lambda: f"DepthToSpace of {of} in blocks of {block}")
    return of[0], of[1] // block**2, of[2] * block, of[3] * block


@moved.register(SpaceToDepth)
def _(how: SpaceToDepth, shapes: tuple[Shape, ...]) -> Shape:
    of, block = shapes[0], how.block
    want(
        len(of) == 4 and both(of[2] % block == 0, of[3] % block == 0),
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
    want(both(sum(sizes) == extent, sizes[-1] >= 0), lambda: f"Split of {extent} into {list(sizes)}")
    return sizes


def margins(padded: Padded, rank: int) -> dict[int, tuple[int, int]]:
    """Return the padding before and after each padded axis."""
    axes = tuple(range(rank)) if padded.axes is None else tuple(axis_of(a, rank) for a in padded.axes)
    want(len(axes) == len(padded.before), lambda: f"Pad of {plural(padded.before, 'axis')} of a value of rank {rank}")
    around = dict(zip(axes, zip(padded.before, padded.after, strict=True), strict=True))
    want(min((n for pair in around.values() for n in pair), default=0) >= 0, lambda: "Pad that crops")
    return {axis: pair for axis, pair in around.items() if pair != (0, 0)}


# ---- what contracts


def places(window: SlidingWindow, shapes: tuple[Shape, ...]) -> tuple[Along, Along, Along]:
    """Return the positions of a window in an image, the padding before them, and its extents: depth, rows, columns."""
    dims = len(shapes[0]) - 2
    want(dims in (1, 2, 3) and window.dims in ((0, dims) if dims < 3 else (3,)), lambda: f"images of shape {shapes[0]}")
    row = (1,) * (2 - dims)
    if window.kernel is None:
        want(len(shapes[1]) == len(shapes[0]), lambda: f"filters of shape {shapes[1]}")
    kernel = window.kernel or row + shapes[1][2:]
    for n in kernel:
        want(n > 0, lambda: f"a window of {kernel} elements")

    def found() -> tuple[int, ...]:
        made = window.sliding.over((1, *row, *shapes[0][2:], 1), kernel)
        return (*made.out, *made.begin)

    told = merged(found)
    return told[: len(kernel)], told[len(kernel) :], kernel


def _seen(window: SlidingWindow, shapes: tuple[Shape, ...]) -> Shape:
    dims = len(shapes[0]) - 2
    out, _, kernel = places(window, shapes)
    return (*shapes[0][:2], *out[-dims:], *kernel[-dims:])


def _convolved(contract: Contraction, window: Shape, filters: Shape) -> Shape:
    dims = (len(window) - 2) // 2
    groups = contract.groups
    want(
        groups > 0 and both(filters[1] * groups == window[1], filters[0] % groups == 0),
        lambda: f"{groups} groups, {window[1]} channels, filters of shape {filters}",
    )
    return (window[0], filters[0], *window[2 : 2 + dims])


def _multiplied(contract: Contraction, left: Shape, right: Shape) -> Shape:
    want(min(len(left), len(right)) > 1, lambda: f"a product of ranks {len(left)} and {len(right)}, expected 2 or more")
    a, b = contract.axes
    want(left[a] == right[b], lambda: f"a product of {left[a]} columns and {right[b]} rows")
    return (*broadcast((left[:-2], right[:-2])), left[-3 - a], right[-3 - b])


def _resampled(how: Resizing, shape: Shape) -> Shape:
    want(len(shape) == 4, lambda: f"images of rank {len(shape)}")
    batch, channels, *image = shape
    return (batch, channels, *how.over((image[0], image[1])))


def _attended(attend: Attend, shapes: tuple[Shape, ...]) -> Shape:
    q, k, v = shapes[:3]
    ranks = [len(s) for s in shapes]
    want(ranks[:3] == [3, 3, 3] and max(ranks) < 5, lambda: f"attention of ranks {ranks}, expected 3, 3, 3 and 4")
    heads = attend.heads
    same = both(both(q[0] == k[0], k[:2] == v[:2]), both(q[2] == k[2], both(q[2] % heads == 0, v[2] % heads == 0)))
    want(same, lambda: f"{heads} heads of queries {q}, keys {k}, values {v}")
    if len(shapes) > 3:
        whole = (q[0], heads, q[1], k[1])
        for n, m in zip(shapes[3][::-1], whole[::-1], strict=False):
            want(either(n == 1, n == m), lambda: f"a bias of shape {shapes[3]} on scores of {whole}")
    return (*q[:2], v[2])
