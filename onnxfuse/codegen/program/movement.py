"""Data movement operations as plain data, and the shapes of their results; `movement_maps` derives indices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnxfuse import ops
from onnxfuse.codegen.program.index_map import REFLECT
from onnxfuse.ops.shapes import moved
from onnxfuse.ops.shapes.extents import axis_of, different_axes, want_rank
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic.branching import larger, want
from onnxfuse.symbolic.strides import Shape
from onnxfuse.symbolic.traced_numbers import both, either

Shapes = tuple[Shape, ...]
"""Of the operands. `shape` of a movement returns that of the result."""


@dataclass(frozen=True)
class Transposed:
    perm: tuple[int, ...] | None
    """None: all axes reversed."""

    def shape(self, of: Shapes) -> Shape:
        return moved.transposed(of[0], self.perm)


@dataclass(frozen=True)
class Reshaped:
    target: Shape
    """One extent may be -1: the remaining one."""
    zero_copies: bool
    """Whether 0 copies the operand's extent at the same axis."""

    def shape(self, of: Shapes) -> Shape:
        return moved.reshaped(of[0], self.target, self.zero_copies)


@dataclass(frozen=True)
class Alike:
    """Reshaped to the shape of the second operand, whose elements are not read."""

    def shape(self, of: Shapes) -> Shape:
        return moved.reshaped(of[0], of[1], zero_copies=False)


@dataclass(frozen=True)
class Channelled:
    """A vector broadcast along the channels, axis 1, of the second operand, whose elements are not read."""

    def shape(self, of: Shapes) -> Shape:
        want_rank(of[0], 1, "a weight by channel")
        return (*of[0], *(1,) * (len(of[1]) - 2))


@dataclass(frozen=True)
class Grouped:
    """[N, C, ...] as [N, groups, rest]."""

    groups: int

    def shape(self, of: Shapes) -> Shape:
        x, groups = of[0], self.groups
        want(len(x) > 1 and groups > 0 and x[1] % groups == 0, lambda: f"{groups} groups of shape {x}")
        return x[0], groups, math.prod(x[1:]) // groups


@dataclass(frozen=True)
class Flattened:
    axis: int

    def shape(self, of: Shapes) -> Shape:
        return moved.flattened(of[0], self.axis)


@dataclass(frozen=True)
class Squeezed:
    axes: tuple[int, ...] | None
    """None: every axis of extent 1."""

    def shape(self, of: Shapes) -> Shape:
        return moved.squeezed(of[0], self.axes)


@dataclass(frozen=True)
class Unsqueezed:
    axes: tuple[int, ...]

    def shape(self, of: Shapes) -> Shape:
        return moved.unsqueezed(of[0], self.axes)


@dataclass(frozen=True)
class ExtentOf:
    """The extent of an operand's axis, or a quotient of it; the operand's elements are not read."""

    operand: int
    axis: int
    by: int = 1
    """Divisor; the quotient is rounded down."""

    def of(self, shapes: Shapes) -> int:
        """Return it for operands of these shapes."""
        shape = shapes[self.operand]
        return shape[axis_of(self.axis, len(shape))] // self.by


@dataclass(frozen=True)
class Expanded:
    target: tuple[int | ExtentOf, ...]

    def shape(self, of: Shapes) -> Shape:
        target = tuple(n if isinstance(n, int) else n.of(of) for n in self.target)
        return moved.expanded(of[0], target)


@dataclass(frozen=True)
class SliceRange:
    """A slice along one axis, with ONNX's semantics of negative and out-of-range indices."""

    axis: int
    start: int
    end: int
    step: int

    def part(self, of: Shape) -> tuple[int, int]:
        """Return the first index and the length along the axis of an operand."""
        return moved.sliced(self.start, self.end, self.step, of[axis_of(self.axis, len(of))])


@dataclass(frozen=True)
class Sliced:
    cuts: tuple[SliceRange, ...]

    def shape(self, of: Shapes) -> Shape:
        axes = different_axes((c.axis for c in self.cuts), len(of[0]), ops.Slice)
        lengths = {axis: part.part(of[0])[1] for axis, part in zip(axes, self.cuts, strict=True)}
        return tuple(lengths.get(d, n) for d, n in enumerate(of[0]))


@dataclass(frozen=True)
class SplitOutput:
    """One output of a Split."""

    axis: int
    number: int
    parts: int
    sizes: tuple[int, ...]
    """Empty: equal parts, the last one smaller if necessary."""

    def shape(self, of: Shapes) -> Shape:
        return moved.gathered(of[0], (self.extents(of[0])[self.number],), self.axis)

    def extents(self, of: Shape) -> tuple[int, ...]:
        """Return the extents of all outputs along the axis."""
        return moved.split(self.sizes, self.parts, of[axis_of(self.axis, len(of))])


@dataclass(frozen=True)
class Picked:
    """Element `at` of an axis, which is removed."""

    axis: int
    at: int

    def shape(self, of: Shapes) -> Shape:
        axis, at = axis_of(self.axis, len(of[0])), self.at
        extent = of[0][axis]
        want(either(at >= 0, extent + at >= 0), lambda: f"Gather of element {at} of axis {axis}, which has {extent}")
        want(at < extent, lambda: f"Gather of element {at} of axis {axis}, which has {extent}")
        return moved.gathered(of[0], (), axis)


@dataclass(frozen=True)
class Run:
    """Elements start, start + step, ... of an axis, `length` of them."""

    start: int
    step: int
    length: int


@dataclass(frozen=True)
class Gathered:
    """Elements of one axis by constant, non-negative indices."""

    axis: int
    runs: tuple[Run, ...]
    """The runs of indices, in order."""

    def shape(self, of: Shapes) -> Shape:
        axis = axis_of(self.axis, len(of[0]))
        extent = of[0][axis]
        ends = [end for r in self.runs for end in (r.start, r.start + r.step * (r.length - 1))]
        want(min(ends, default=0) >= 0, lambda: f"Gather beyond the {extent} elements of axis {axis}")
        want(max(ends, default=-1) < extent, lambda: f"Gather beyond the {extent} elements of axis {axis}")
        return moved.gathered(of[0], (sum(r.length for r in self.runs),), axis)


@dataclass(frozen=True)
class LookedUp:
    """Rows of the first operand, a table, by the indices in the second, which are known only at run time."""

    def shape(self, of: Shapes) -> Shape:
        want(len(of[0]) > 0, lambda: "rows of a table of rank 0")
        return moved.gathered(of[0], of[1], 0)


@dataclass(frozen=True)
class Concatenated:
    axis: int

    def shape(self, of: Shapes) -> Shape:
        return moved.concatenated(of, self.axis)


@dataclass(frozen=True)
class Padded:
    """The second operand is the padding value."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    axes: tuple[int, ...] | None
    """None: all axes."""

    def shape(self, of: Shapes) -> Shape:
        for n in of[1]:
            want(n == 1, lambda: f"Pad with a number of shape {of[1]}")
        around = self.margins(len(of[0]))
        return moved.padded(of[0], [a for a, _ in around.values()], [a for _, a in around.values()], [*around])

    def margins(self, rank: int) -> dict[int, tuple[int, int]]:
        """Return the padding before and after each padded axis."""
        axes = tuple(range(rank)) if self.axes is None else different_axes(self.axes, rank, ops.Pad)
        want(len(axes) == len(self.before), lambda: f"Pad of {plural(self.before, 'axis')} of a value of rank {rank}")
        around = dict(zip(axes, zip(self.before, self.after, strict=True), strict=True))
        want(min((n for pair in around.values() for n in pair), default=0) >= 0, lambda: "Pad that crops")
        return {axis: pair for axis, pair in around.items() if pair != (0, 0)}


WRAP = "wrap"


@dataclass(frozen=True)
class PaddedByItself:
    """Padded by its own elements: mirrored, the nearest one, or those at the other end."""

    mode: str
    """`REFLECT` or `EDGE` of `index_map`, or `WRAP`: ONNX's names."""
    around: tuple[tuple[int, int, int], ...]
    """Axis, and how many elements are added before and after, none negative."""

    def shape(self, of: Shapes) -> Shape:
        axes = different_axes((axis for axis, _, _ in self.around), len(of[0]), ops.Pad)
        befores, afters = [before for _, before, _ in self.around], [after for _, _, after in self.around]
        for axis, before, after in zip(axes, befores, afters, strict=True):
            self._want_enough(of[0][axis], max(before, after))
        return moved.padded(of[0], befores, afters, axes)

    def _want_enough(self, extent: int, most: int) -> None:
        enough = most < extent if self.mode == REFLECT else either(extent > 0, most == 0)
        want(enough, lambda: f"Pad by {self.mode} of {extent} elements by {most}")


@dataclass(frozen=True)
class Repeated:
    """Every element repeated this often along each axis: nearest Resize by integer factors."""

    factors: tuple[int, ...]

    def shape(self, of: Shapes) -> Shape:
        return moved.repeated(of[0], self.factors, ops.Resize)


@dataclass(frozen=True)
class Enlarged:
    """The same, by the extents of the result, which are multiples of the operand's."""

    sizes: Shape

    def shape(self, of: Shapes) -> Shape:
        x, sizes = of[0], self.sizes
        want_rank(x, len(sizes), ops.Resize)
        for m, n in zip(x, sizes, strict=True):
            fits = both(n % larger(m, 1) == 0, either(n == 0, m > 0))
            want(fits, lambda: f"Resize of {x} to {sizes}, expected multiples")
        return sizes


@dataclass(frozen=True)
class DepthToSpace:
    block: int
    columns_first: bool
    """Whether the mode is CRD: the channel is the outer part."""

    def shape(self, of: Shapes) -> Shape:
        return moved.depth_to_space(of[0], self.block)


@dataclass(frozen=True)
class SpaceToDepth:
    block: int

    def shape(self, of: Shapes) -> Shape:
        return moved.space_to_depth(of[0], self.block)


View = Reshaped | Alike | Channelled | Grouped | Flattened | Squeezed | Unsqueezed
"""Movements that change the shape alone: the elements stay in row-major order."""

Movement = (
    Transposed | View | Expanded | Sliced | SplitOutput | Picked | Gathered | LookedUp | Concatenated | Padded
    | PaddedByItself | Repeated | Enlarged | DepthToSpace | SpaceToDepth
)  # fmt: skip
