"""Data movement as facts: the shape that it gives, and where an element of its result lies in its operands."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnxfuse.kernels.index import Bound, Index, Shape, Space, reshaped
from onnxfuse.kernels.types import UnsupportedError


@dataclass(frozen=True)
class Transposed:
    perm: tuple[int, ...] | None
    """None: all axes in reverse."""


@dataclass(frozen=True)
class Reshaped:
    target: Shape
    """One extent may be -1: what is left."""
    zero_copies: bool
    """True: 0 stands for the operand's extent at the same axis."""


@dataclass(frozen=True)
class Alike:
    """Reshaped to the shape of the second operand, whose elements nobody reads."""


@dataclass(frozen=True)
class Channelled:
    """A vector laid along the channels, axis 1, of the second operand, whose elements nobody reads."""


@dataclass(frozen=True)
class Grouped:
    """[N, C, ...] as [N, groups, rest]."""

    groups: int


@dataclass(frozen=True)
class Flattened:
    axis: int


@dataclass(frozen=True)
class Squeezed:
    axes: tuple[int, ...] | None
    """None: every axis of extent 1."""


@dataclass(frozen=True)
class Unsqueezed:
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Expanded:
    target: Shape


@dataclass(frozen=True)
class Cut:
    """A slice along one axis, with ONNX's meaning of negative and too large numbers."""

    axis: int
    start: int
    end: int
    step: int


@dataclass(frozen=True)
class Sliced:
    cuts: tuple[Cut, ...]


@dataclass(frozen=True)
class Part:
    """One output of a Split."""

    axis: int
    number: int
    parts: int
    sizes: tuple[int, ...]
    """Empty: as equal as can be, the last one smaller."""


@dataclass(frozen=True)
class Picked:
    """The element number `at` of an axis, which goes away."""

    axis: int
    at: int


@dataclass(frozen=True)
class Run:
    """Elements start, start + step, ... of an axis, `length` of them."""

    start: int
    step: int
    length: int


@dataclass(frozen=True)
class Gathered:
    """Elements of one axis by constant numbers, which are not negative."""

    axis: int
    runs: tuple[Run, ...]
    """One after the other."""


@dataclass(frozen=True)
class LookedUp:
    """Rows of the first operand, a table, by the numbers in the second, which are known when the kernel runs."""


@dataclass(frozen=True)
class Concatenated:
    axis: int


@dataclass(frozen=True)
class Padded:
    """The second operand is the number that stands around the first one."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    axes: tuple[int, ...] | None
    """None: all axes."""


@dataclass(frozen=True)
class Repeated:
    """Every element this often along each axis: nearest Resize by whole numbers."""

    factors: tuple[int, ...]


@dataclass(frozen=True)
class Enlarged:
    """The same by the extents of the result, multiples of the operand's."""

    sizes: Shape


@dataclass(frozen=True)
class DepthToSpace:
    block: int
    columns_first: bool
    """True: mode CRD, the channel is the outer part."""


@dataclass(frozen=True)
class SpaceToDepth:
    block: int


Movement = (
    Transposed | Reshaped | Alike | Channelled | Grouped | Flattened | Squeezed | Unsqueezed | Expanded | Sliced | Part
    | Picked | Gathered | LookedUp | Concatenated | Padded | Repeated | Enlarged | DepthToSpace | SpaceToDepth
)  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """Where a result's element comes from: operand number `operand` at `coordinates`, where all `bounds` hold."""

    operand: int
    coordinates: tuple[Index, ...]
    bounds: tuple[Bound, ...] = ()


def shape(how: Movement, shapes: tuple[Shape, ...]) -> Shape:
    """Return the shape of the result for these shapes of the operands; raises `UnsupportedError`."""
    of = shapes[0]
    match how:
        case Transposed():
            return tuple(of[a] for a in _perm(how, len(of)))
        case Reshaped(target=target, zero_copies=zero_copies):
            return _reshape(target, zero_copies, of)
        case Alike():
            if math.prod(of) != math.prod(shapes[1]):
                raise UnsupportedError(f"Reshape of {of} to {list(shapes[1])}")
            return shapes[1]
        case Channelled():
            _want_rank(of, 1, "a weight by channel")
            return (*of, *(1,) * (len(shapes[1]) - 2))
        case Grouped(groups=groups):
            if len(of) < 2 or of[1] % groups:
                raise UnsupportedError(f"{groups} groups of shape {of}")
            return of[0], groups, math.prod(of[1:]) // groups
        case Flattened(axis=axis):
            axis = axis + len(of) if axis < 0 else axis
            return math.prod(of[:axis]), math.prod(of[axis:])
        case Squeezed(axes=axes):
            gone = [d for d, n in enumerate(of) if n == 1] if axes is None else [_axis(a, len(of)) for a in axes]
            if any(of[d] != 1 for d in gone):
                raise UnsupportedError(f"Squeeze of axes {gone} of shape {of}")
            return tuple(n for d, n in enumerate(of) if d not in gone)
        case Unsqueezed(axes=axes):
            rank = len(of) + len(axes)
            new, rest = {_axis(a, rank) for a in axes}, iter(of)
            return tuple(1 if d in new else next(rest) for d in range(rank))
        case Expanded(target=target):
            rank = max(len(of), len(target))
            pairs = zip((1,) * (rank - len(of)) + of, (1,) * (rank - len(target)) + target, strict=True)
            return tuple(b if a == 1 else a for a, b in pairs)
        case Sliced(cuts=cuts):
            extents = list(of)
            for cut in cuts:
                axis = _axis(cut.axis, len(of))
                extents[axis] = len(_steps(cut, of[axis]))
            return tuple(extents)
        case Part(axis=axis, number=number):
            axis = _axis(axis, len(of))
            return (*of[:axis], _sizes(how, of[axis])[number], *of[axis + 1 :])
        case Picked(axis=axis):
            axis = _axis(axis, len(of))
            return (*of[:axis], *of[axis + 1 :])
        case Gathered(axis=axis, runs=runs):
            axis = _axis(axis, len(of))
            if any(not 0 <= end < of[axis] for r in runs for end in (r.start, r.start + r.step * (r.length - 1))):
                raise UnsupportedError(f"Gather beyond the {of[axis]} elements of axis {axis}")
            return (*of[:axis], sum(r.length for r in runs), *of[axis + 1 :])
        case LookedUp():
            _axis(0, len(of))
            return (*shapes[1], *of[1:])
        case Concatenated(axis=axis):
            axis = _axis(axis, len(of))
            if any(len(s) != len(of) or s[:axis] + s[axis + 1 :] != of[:axis] + of[axis + 1 :] for s in shapes):
                raise UnsupportedError(f"Concat of shapes {', '.join(map(str, shapes))} along axis {axis}")
            return (*of[:axis], sum(s[axis] for s in shapes), *of[axis + 1 :])
        case Padded():
            around = _around(how, len(of))
            return tuple(n + sum(around.get(d, (0, 0))) for d, n in enumerate(of))
        case Repeated(factors=factors):
            _want_rank(of, len(factors), "Resize")
            return tuple(n * f for n, f in zip(of, factors, strict=True))
        case Enlarged(sizes=sizes):
            _want_rank(of, len(sizes), "Resize")
            if any(n % max(m, 1) for m, n in zip(of, sizes, strict=True)) or (0 in of and 0 not in sizes):
                raise UnsupportedError(f"Resize of {of} to {sizes}, expected multiples")
            return sizes
        case DepthToSpace(block=block):
            _want_rank(of, 4, "DepthToSpace")
            if of[1] % block**2:
                raise UnsupportedError(f"DepthToSpace of {of[1]} channels in blocks of {block}")
            return of[0], of[1] // block**2, of[2] * block, of[3] * block
        case SpaceToDepth(block=block):
            _want_rank(of, 4, "SpaceToDepth")
            if of[2] % block or of[3] % block:
                raise UnsupportedError(f"SpaceToDepth of {of[2]}x{of[3]} in blocks of {block}")
            return of[0], of[1] * block**2, of[2] // block, of[3] // block


def pieces(how: Movement, space: Space, at: tuple[Index, ...], shapes: tuple[Shape, ...]) -> tuple[Piece, ...]:
    """Return where the element of the result at the coordinates `at` comes from; at most one piece holds at a time.

    For `Padded` no piece holds in the margin.
    """
    of = shapes[0]
    match how:
        case Transposed():
            inverse = {a: d for d, a in enumerate(_perm(how, len(of)))}
            return (Piece(0, tuple(at[inverse[d]] for d in range(len(of)))),)
        case Reshaped() | Alike() | Channelled() | Grouped() | Flattened() | Squeezed() | Unsqueezed():
            return (Piece(0, reshaped(space, at, shape(how, shapes), of)),)
        case Expanded():
            return (Piece(0, broadcast(at, of)),)
        case Sliced(cuts=cuts):
            moved = list(at)
            for cut in cuts:
                axis = _axis(cut.axis, len(of))
                steps = _steps(cut, of[axis])
                moved[axis] = moved[axis] * steps.step + steps.start
            return (Piece(0, tuple(moved)),)
        case Part(axis=axis, number=number):
            axis = _axis(axis, len(of))
            return (Piece(0, _shifted(at, axis, sum(_sizes(how, of[axis])[:number]))),)
        case Picked(axis=axis, at=element):
            axis = _axis(axis, len(of))
            element = element + of[axis] if element < 0 else element
            return (Piece(0, (*at[:axis], Index((), element), *at[axis:])),)
        case Gathered(axis=axis, runs=runs):
            axis = _axis(axis, len(of))
            firsts = [sum(r.length for r in runs[:n]) for n in range(len(runs))]
            return tuple(
                Piece(
                    0,
                    (*at[:axis], (at[axis] + -first) * r.step + r.start, *at[axis + 1 :]),
                    (Bound(at[axis], first, first + r.length),),
                )
                for first, r in zip(firsts, runs, strict=True)
            )
        case LookedUp():
            raise AssertionError("no index map: lowered.check refuses it")
        case Concatenated(axis=axis):
            axis = _axis(axis, len(of))
            ends = [sum(s[axis] for s in shapes[: n + 1]) for n in range(len(shapes))]
            return tuple(
                Piece(n, _shifted(at, axis, s[axis] - end), (Bound(at[axis], end - s[axis], end),))
                for n, (s, end) in enumerate(zip(shapes, ends, strict=True))
            )
        case Padded():
            around = _around(how, len(of))
            moved, bounds = list(at), []
            for axis, (before, _) in around.items():
                moved[axis] = at[axis] + -before
                bounds.append(Bound(at[axis], before, before + of[axis]))
            return (Piece(0, tuple(moved), tuple(bounds)),)
        case Repeated(factors=factors):
            return (Piece(0, tuple(space.divide(c, f)[0] for c, f in zip(at, factors, strict=True))),)
        case Enlarged(sizes=sizes):
            by = tuple(n // max(m, 1) for m, n in zip(of, sizes, strict=True))
            return (Piece(0, tuple(space.divide(c, f)[0] for c, f in zip(at, by, strict=True))),)
        case DepthToSpace(block=block, columns_first=columns_first):
            (y, i), (x, j) = space.divide(at[2], block), space.divide(at[3], block)
            inside, depth = i * block + j, of[1] // block**2
            channel = at[1] * block**2 + inside if columns_first else inside * depth + at[1]
            return (Piece(0, (at[0], channel, y, x)),)
        case SpaceToDepth(block=block):
            inside, channel = space.divide(at[1], of[1])
            i, j = space.divide(inside, block)
            return (Piece(0, (at[0], channel, at[2] * block + i, at[3] * block + j)),)


def broadcast(at: tuple[Index, ...], of: Shape) -> tuple[Index, ...]:
    """Return the coordinates in an operand of shape `of` that is broadcast to where `at` are the coordinates."""
    own = at[len(at) - len(of) :]
    return tuple(Index() if n == 1 else c for c, n in zip(own, of, strict=True))


def _axis(axis: int, rank: int) -> int:
    found = axis + rank if axis < 0 else axis
    if not 0 <= found < rank:
        raise UnsupportedError(f"axis {axis} of a value of rank {rank}")
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


def _steps(cut: Cut, extent: int) -> range:
    """The elements that a slice takes: Python's meaning is ONNX's."""
    return range(*slice(cut.start, cut.end, cut.step).indices(extent))


def _sizes(part: Part, extent: int) -> tuple[int, ...]:
    size = -(-extent // part.parts)
    sizes = part.sizes or (*(size for _ in range(part.parts - 1)), extent - size * (part.parts - 1))
    if sum(sizes) != extent or min(sizes) < 0 or len(sizes) != part.parts:
        raise UnsupportedError(f"Split of {extent} into {list(sizes)}")
    return sizes


def _shifted(at: tuple[Index, ...], axis: int, by: int) -> tuple[Index, ...]:
    return (*at[:axis], at[axis] + by, *at[axis + 1 :])


def _around(how: Padded, rank: int) -> dict[int, tuple[int, int]]:
    axes = tuple(range(rank)) if how.axes is None else tuple(_axis(a, rank) for a in how.axes)
    if len(axes) != len(how.before):
        raise UnsupportedError(f"Pad of {len(how.before)} axes of a value of rank {rank}")
    pairs = zip(axes, zip(how.before, how.after, strict=True), strict=True)
    around = {a: pair for a, pair in pairs if pair != (0, 0)}
    if any(n < 0 for pair in around.values() for n in pair):
        raise UnsupportedError("Pad that crops")
    return around
