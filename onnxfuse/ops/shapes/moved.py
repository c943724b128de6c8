"""Shapes of moved data, from the operands' shapes and what the move is by.

Conditions on traced extents are combined by `either` and `selected`; the only branch is `want`. So one answer holds for
all extents while a program is recorded, unless the recording is `deciding`.
"""

import math
from collections.abc import Sequence

from onnxfuse.ops.shapes.extents import (
    UnknownError,
    axis_of,
    broadcast,
    different_axes,
    is_symbolic,
    may_be_multiple,
    may_equal,
    quotient,
    smaller,
    unknown,
    want_rank,
)
from onnxfuse.symbolic.branching import larger, want
from onnxfuse.symbolic.integer import bounds
from onnxfuse.symbolic.traced_numbers import both


def permutation(perm: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return the axis of the operand for each axis of a Transpose's result; None reverses them."""
    axes = tuple(reversed(range(rank))) if perm is None else tuple(perm)
    want(sorted(axes) == list(range(rank)), lambda: f"Transpose by {list(axes)} of a value of rank {rank}")
    return axes


def transposed(of: Sequence[int], perm: Sequence[int] | None) -> tuple[int, ...]:
    """Return the shape of a Transpose."""
    return tuple(of[a] for a in permutation(perm, len(of)))


# ---- views


def reshaped(of: Sequence[int], target: Sequence[int], zero_copies: bool) -> tuple[int, ...]:
    """Return the shape of a Reshape: -1 is the remaining extent, and 0 the operand's with `zero_copies`."""
    copied = [zero_copies and not is_symbolic(n) and n == 0 for n in target]
    want(not any(copied[len(of) :]), lambda: f"Reshape of {of} to {target}")
    extents = [of[d] if copy else n for d, (n, copy) in enumerate(zip(target, copied, strict=True))]
    if -1 in target:
        left = target.index(-1)
        known = math.prod(n for d, n in enumerate(extents) if d != left)
        want(is_symbolic(known) or known != 0, lambda: f"Reshape of {of} to {target}")
        extents[left] = quotient(math.prod(of), known)
    if not is_symbolic(*of, *extents):
        want(math.prod(extents) == math.prod(of), lambda: f"Reshape of {of} to {target}")
    return tuple(extents)


def flattened(of: Sequence[int], axis: int) -> tuple[int, int]:
    """Return the shape of a Flatten: the axes before one, and the others."""
    inner = axis + len(of) if axis < 0 else axis
    want(0 <= inner <= len(of), lambda: f"Flatten at axis {inner} of a value of rank {len(of)}")
    return math.prod(of[:inner]), math.prod(of[inner:])


def squeezed(of: Sequence[int], axes: Sequence[int] | None) -> tuple[int, ...]:
    """Return the shape of a Squeeze; None is every axis of extent 1."""
    if axes is None and is_symbolic(*of):
        raise UnknownError("which extents are 1")
    gone = [d for d, n in enumerate(of) if n == 1] if axes is None else [axis_of(a, len(of)) for a in axes]
    for d in gone:
        want(may_equal(of[d], 1), lambda: f"Squeeze of axes {gone} of shape {of}")
    return tuple(n for d, n in enumerate(of) if d not in gone)


def unsqueezed(of: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of an Unsqueeze."""
    rank = len(of) + len(axes)
    new, rest = {*different_axes(axes, rank, "Unsqueeze")}, iter(of)
    return tuple(1 if d in new else next(rest) for d in range(rank))


# ---- parts


ALL = 10**9
"""The end of a Slice from which on it takes all of an open extent, as exporters write it."""


def sliced(start: int, end: int, step: int, extent: int) -> tuple[int, int]:
    """Return the first index and the length of a Slice along an axis, with Python's semantics.

    Of symbolic integers it is known how long a part from the first element to an end that is not negative is.
    """
    want(step != 0, lambda: "Slice in steps of 0")
    if is_symbolic(start, end, extent):
        known = not is_symbolic(start) and start == 0 and step == 1 and bounds(end)[0] >= 0
        if known and isinstance(end, int) and end >= ALL:
            return start, extent
        return start, smaller(extent, end) if known else unknown()
    low, high = (0, extent) if step > 0 else (-1, extent - 1)

    def inside(n: int) -> int:
        return larger(n + extent, low) if n < 0 else smaller(n, high)

    first, last = inside(start), inside(end)
    steps = -(-(last - first) // step) if step > 0 else -(-(first - last) // -step)
    return first, larger(steps, 0)


def split(sizes: Sequence[int], parts: int, extent: int) -> tuple[int, ...]:
    """Return the extents of a Split's outputs along its axis; without sizes equal ones, the last one smaller if need
    be."""
    if not sizes and is_symbolic(extent):
        return (quotient(extent, parts),) * parts
    size = -(-extent // parts)
    told = tuple(sizes) or (*(size for _ in range(parts - 1)), extent - size * (parts - 1))
    if not is_symbolic(extent, *told):
        whole = len(told) == parts and min(told[:-1], default=0) >= 0
        want(whole and both(sum(told) == extent, told[-1] >= 0), lambda: f"Split of {extent} into {list(told)}")
    return told


def gathered(of: Sequence[int], indices: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return the shape of a Gather by indices of this shape."""
    along = axis_of(axis, len(of))
    return (*of[:along], *indices, *of[along + 1 :])


# ---- wholes


def concatenated(shapes: Sequence[Sequence[int]], axis: int) -> tuple[int, ...]:
    """Return the shape of a Concat."""
    of = shapes[0]
    along = axis_of(axis, len(of))
    for shape in shapes:
        want(len(shape) == len(of), lambda: f"Concat of shapes {', '.join(map(str, shapes))}")
        for d, n in enumerate(shape):
            want(d == along or may_equal(n, of[d]), lambda: f"Concat of shapes {', '.join(map(str, shapes))}")
    return (*of[:along], sum(s[along] for s in shapes), *of[along + 1 :])


def padded(
    of: Sequence[int], before: Sequence[int], after: Sequence[int], axes: Sequence[int] | None
) -> tuple[int, ...]:
    """Return the shape of a Pad along these axes, None for all."""
    along = tuple(range(len(of))) if axes is None else axes
    more = dict(zip(along, zip(before, after, strict=True), strict=True))
    return tuple(n + sum(more.get(d, ())) for d, n in enumerate(of))


def repeated(of: Sequence[int], factors: Sequence[int], what: str) -> tuple[int, ...]:
    """Return the shape with each extent multiplied."""
    want_rank(of, len(factors), what)
    return tuple(n * f for n, f in zip(of, factors, strict=True))


def expanded(of: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of an Expand."""
    return broadcast((of, target), lambda: f"Expand of {of} to {list(target)}")


# ---- blocks of pixels


def depth_to_space(of: Sequence[int], block: int) -> tuple[int, ...]:
    """Return the shape of a DepthToSpace."""
    want_rank(of, 4, "DepthToSpace")
    fits = block > 0 and may_be_multiple(of[1], block**2)
    want(fits, lambda: f"DepthToSpace of {of} in blocks of {block}")
    return of[0], quotient(of[1], block**2), of[2] * block, of[3] * block


def space_to_depth(of: Sequence[int], block: int) -> tuple[int, ...]:
    """Return the shape of a SpaceToDepth."""
    want_rank(of, 4, "SpaceToDepth")
    fits = block > 0 and both(may_be_multiple(of[2], block), may_be_multiple(of[3], block))
    want(fits, lambda: f"SpaceToDepth of {of} in blocks of {block}")
    return of[0], of[1] * block**2, of[2] // block, of[3] // block
