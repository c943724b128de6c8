"""Data movement operations as plain data; `movement_maps` derives their shapes and indices."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.codegen.program.index_map import Shape


@dataclass(frozen=True)
class Transposed:
    perm: tuple[int, ...] | None
    """None: all axes reversed."""


@dataclass(frozen=True)
class Reshaped:
    target: Shape
    """One extent may be -1: the remaining one."""
    zero_copies: bool
    """Whether 0 copies the operand's extent at the same axis."""


@dataclass(frozen=True)
class Alike:
    """Reshaped to the shape of the second operand, whose elements are not read."""


@dataclass(frozen=True)
class Channelled:
    """A vector broadcast along the channels, axis 1, of the second operand, whose elements are not read."""


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
class Extent:
    """The extent of an operand's axis, or a quotient of it; the operand's elements are not read."""

    operand: int
    axis: int
    by: int = 1
    """Divisor; the quotient is rounded down."""


@dataclass(frozen=True)
class Expanded:
    target: tuple[int | Extent, ...]


@dataclass(frozen=True)
class SliceRange:
    """A slice along one axis, with ONNX's semantics of negative and out-of-range indices."""

    axis: int
    start: int
    end: int
    step: int


@dataclass(frozen=True)
class Sliced:
    cuts: tuple[SliceRange, ...]


@dataclass(frozen=True)
class SplitOutput:
    """One output of a Split."""

    axis: int
    number: int
    parts: int
    sizes: tuple[int, ...]
    """Empty: equal parts, the last one smaller if necessary."""


@dataclass(frozen=True)
class Picked:
    """Element `at` of an axis, which is removed."""

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
    """Elements of one axis by constant, non-negative indices."""

    axis: int
    runs: tuple[Run, ...]
    """The runs of indices, in order."""


@dataclass(frozen=True)
class LookedUp:
    """Rows of the first operand, a table, by the indices in the second, which are known only at run time."""


@dataclass(frozen=True)
class Concatenated:
    axis: int


@dataclass(frozen=True)
class Padded:
    """The second operand is the padding value."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    axes: tuple[int, ...] | None
    """None: all axes."""


@dataclass(frozen=True)
class Repeated:
    """Every element repeated this often along each axis: nearest Resize by integer factors."""

    factors: tuple[int, ...]


@dataclass(frozen=True)
class Enlarged:
    """The same, by the extents of the result, which are multiples of the operand's."""

    sizes: Shape


@dataclass(frozen=True)
class DepthToSpace:
    block: int
    columns_first: bool
    """Whether the mode is CRD: the channel is the outer part."""


@dataclass(frozen=True)
class SpaceToDepth:
    block: int


View = Reshaped | Alike | Channelled | Grouped | Flattened | Squeezed | Unsqueezed
"""Movements that change the shape alone: the elements stay in row-major order."""

Movement = (
    Transposed | View | Expanded | Sliced | SplitOutput | Picked | Gathered | LookedUp | Concatenated | Padded
    | Repeated | Enlarged | DepthToSpace | SpaceToDepth
)  # fmt: skip
