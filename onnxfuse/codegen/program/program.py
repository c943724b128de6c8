"""A fused op's body as a small typed program in SSA form: every computed value, each from earlier ones.

The operator tables expand composite ops (LayerNormalization, Softmax, Clip, ...) into primitives; `read` walks the
function of an op and builds the program. A matrix product is a contraction, a convolution the contraction of a window,
a pooling the reduction of a window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from onnxfuse.codegen.program import movement_maps
from onnxfuse.codegen.program.movement import Expanded, Movement
from onnxfuse.codegen.program.window import Along, Counted, Resizing, Sliding
from onnxfuse.ops.scalar import Function
from onnxfuse.ops.shapes.products import reduced
from onnxfuse.symbolic.branching import remembered
from onnxfuse.symbolic.element_types import DisagreeingError, UnsupportedError
from onnxfuse.symbolic.packing import Packing

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """One element of an input of the op."""

    index: int
    """Position among the inputs of the op."""
    dtype: int
    """Element type, `onnx.TensorProto.DataType`."""


@dataclass(frozen=True)
class Constant:
    """A literal in the body."""

    value: float | int | bool
    dtype: int
    shape: Shape
    """Its shape in the model, all ones: it participates in broadcasting."""


@dataclass(frozen=True)
class Apply:
    """A scalar operation on earlier values."""

    op: Function
    args: tuple[int, ...]
    """Indices of earlier values."""
    dtype: int


@dataclass(frozen=True)
class Reduce:
    """A reduction over some axes, to length 1."""

    kind: str
    """`sum`, `mean`, `max`, `min`, `prod`; `argmax`, `argmin` and, with ties resolved to the last one, `argmax_last`,
    `argmin_last`.
    """
    arg: int
    """Index of an earlier value."""
    axes: tuple[int, ...]
    """Axes of the argument, negative from the end."""
    onward: bool
    """Whether `axes` is one axis, and all axes after it are reduced as well."""
    dtype: int


@dataclass(frozen=True)
class Move:
    """Elements of earlier values at other indices, unchanged."""

    how: Movement
    args: tuple[int, ...]
    """Indices of earlier values."""
    dtype: int


@dataclass(frozen=True)
class SlidingWindow:
    """Sliding windows (im2col): of images [batch, channels, space...], [batch, channels, places..., taps...]."""

    args: tuple[int, ...]
    """Indices of earlier values: the images and, if `kernel` is None, filters [..., taps...] that determine its
    extents.
    """
    kernel: Along | None
    """Extents of the window; None: those of the filters."""
    sliding: Sliding
    """Strides, dilations and padding; an image of one dimension is one row."""
    dims: int
    """Number of spatial dimensions, 1 to 3; 0 if the body does not determine it, which means 1 or 2."""
    counted: Counted
    """What counts as an element of a window."""
    dtype: int


@dataclass(frozen=True)
class Contraction:
    """Sums of products of two values along a shared axis.

    Matrices: [batch..., m, k] and [batch..., k, n] give [batch..., m, n]. For a `SlidingWindow`, in groups: all
    channels of a group and all taps, with filters [n, channels, taps...], give [batch, n, places...].
    """

    args: tuple[int, int]
    """Indices of earlier values."""
    axes: tuple[int, int]
    """The contracted axis of each, negative from the end; for a window and its filters the channels, with all taps."""
    groups: int
    """Groups of channels that are contracted separately; 1 for matrices."""
    accumulator: int
    """Element type of the accumulator."""
    dtype: int


@dataclass(frozen=True)
class Unpacked:
    """A weight [n, k] that is stored in few bits: (number - zero point) * scale of its block."""

    args: tuple[int, ...]
    """Indices of earlier values: the packed numbers, the scales [n, blocks] and, if there are any, the zero points."""
    packing: Packing
    zeros_packed: bool
    """Whether the zero points are packed like the numbers, rather than of the scales' type, one for each block."""
    dtype: int

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return its shape, [n, k], from those of its arguments. Raises `UnsupportedError` if these do not agree."""
        packing, n = self.packing, shapes[0][0]
        zeros = (n, packing.zero_bytes if self.zeros_packed else packing.blocks)
        expected = ((n, packing.blocks, packing.block_bytes), (n, packing.blocks), zeros)
        for shape, wanted in zip(shapes, expected, strict=False):
            if shape != wanted:
                raise UnsupportedError(
                    f"a weight of {packing.bits} bits of shape {list(shape)}, expected {list(wanted)}"
                )
        return (n, packing.terms)


@dataclass(frozen=True)
class Resample:
    """Images [batch, channels, rows, columns], interpolated linearly."""

    arg: int
    """Index of an earlier value."""
    how: Resizing
    dtype: int


@dataclass(frozen=True)
class Attend:
    """Attention: softmax(q k^T * scale + bias) v, per head."""

    args: tuple[int, ...]
    """Indices of earlier values: queries, keys and values [batch, sequence, heads * size], and optionally a bias for
    the scores [batch, heads, queries, keys].
    """
    heads: int
    scale: float
    """0 = 1 / sqrt(size)."""
    causal: bool
    """Whether queries are restricted to keys up to their own position."""
    dtype: int


Value = Input | Constant | Apply | Reduce | Move | SlidingWindow | Unpacked | Contraction | Resample | Attend


@dataclass(frozen=True)
class Output:
    """An output of the op."""

    value: int
    """Index of the value."""
    dtype: int
    """Element type in memory."""


@dataclass(frozen=True)
class BodyProgram:
    """The body: values in topological order."""

    values: tuple[Value, ...]
    outputs: tuple[Output, ...]
    inputs: tuple[int, ...]
    """Element type of each input of the op, live or not."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.values, self.outputs, self.inputs))

    def live(self) -> frozenset[int]:
        """Return the indices of live values: those that some output depends on."""
        return self._live

    @cached_property
    def _live(self) -> frozenset[int]:
        return self.reached(o.value for o in self.outputs)

    def reached(self, targets: Iterable[int], ends: Iterable[int] = ()) -> frozenset[int]:
        """Return the indices of `targets` and of the values that they depend on, stopping at `ends`."""
        seen, stack, closed = set[int](), list(targets), frozenset(ends)
        while stack:
            index = stack.pop()
            if index not in seen:
                seen.add(index)
                stack.extend(() if index in closed else arguments(self.values[index]))
        return frozenset(seen)

    def readers(self, index: int) -> tuple[int, ...]:
        """Return the indices of the live values that read a value."""
        return tuple(i for i in sorted(self.live()) if index in arguments(self.values[i]))

    def input_at(self, index: int) -> int:
        """Return the op's input index of a value, which must be an input."""
        value = self.values[index]
        assert isinstance(value, Input)
        return value.index

    def is_output(self, index: int) -> bool:
        """Return whether a value is an output."""
        return any(o.value == index for o in self.outputs)

    def reductions(self) -> tuple[int, ...]:
        """Return the indices of live reductions, in order."""
        live = self.live()
        return tuple(i for i, v in enumerate(self.values) if isinstance(v, Reduce) and i in live)

    def is_pointwise(self) -> bool:
        """Return whether it consists of scalar work on inputs and constants only."""
        return all(isinstance(v, Input | Constant | Apply) for v in self.values)

    def moves(self) -> bool:
        """Return whether some output depends on moved data."""
        return any(isinstance(self.values[i], Move) for i in self.live())

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """For each value the number of dependent reductions, in sequence, that precede it."""
        levels: list[int] = []
        for value in self.values:
            before = max((levels[a] for a in arguments(value)), default=0)
            levels.append(before + isinstance(value, Reduce))
        return tuple(levels)

    @remembered(4096)
    def shapes(self, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Return the shape of each value for these shapes of the op's inputs."""
        shapes: list[Shape] = []
        for value in self.values:
            match value:
                case Input(index=index):
                    shapes.append(input_shapes[index])
                case Constant(shape=shape):
                    shapes.append(shape)
                case Apply(args=args):
                    shapes.append(broadcast(*(shapes[a] for a in args)))
                case Reduce():
                    of = shapes[value.arg]
                    shapes.append(reduced(of, reduced_axes(value, len(of)), keep=True))
                case Move(how=how, args=args):
                    shapes.append(movement_maps.shape(how, tuple(shapes[a] for a in args)))
                case SlidingWindow(args=args):
                    shapes.append(_seen(value, tuple(shapes[a] for a in args)))
                case Unpacked(args=args):
                    shapes.append(value.shape(tuple(shapes[a] for a in args)))
                case Contraction(args=(left, right)):
                    window = isinstance(self.values[left], SlidingWindow)
                    shapes.append((_convolved if window else _multiplied)(value, shapes[left], shapes[right]))
                case Resample(arg=arg, how=resizing):
                    batch, channels, *image = _images(shapes[arg], 2)
                    shapes.append((batch, channels, *resizing.over((image[0], image[1]))))
                case Attend(args=(queries, _, of_values, *_)):
                    shapes.append((*shapes[queries][:-1], shapes[of_values][-1]))
        return tuple(shapes)


def refuse_cores(program: BodyProgram, where: str) -> None:
    """Raise `UnsupportedError` if the program holds more than scalar work, reductions and moves by constant indices."""
    for value in program.values:
        match value:
            case SlidingWindow() | Contraction(axes=(1, 1)):
                raise UnsupportedError(f"a window over images in {where}")
            case Contraction():
                raise UnsupportedError(f"a matrix product in {where}")
            case Unpacked():
                raise UnsupportedError(f"a weight of few bits in {where}")
            case Resample():
                raise UnsupportedError(f"a Resize by linear interpolation in {where}")
            case Attend():
                raise UnsupportedError(f"attention in {where}")
            case Move(how=Expanded(target=target)) if not all(isinstance(n, int) for n in target):
                raise UnsupportedError(f"an Expand to extents of other values in {where}")


def arguments(value: Value) -> tuple[int, ...]:
    """Return the indices of a value's operands."""
    match value:
        case Apply() | Move() | SlidingWindow() | Unpacked() | Contraction() | Attend():
            return value.args
        case Reduce(arg=arg) | Resample(arg=arg):
            return (arg,)
        case _:
            return ()


def broadcast(*shapes: Shape) -> Shape:
    """Return the broadcast shape by numpy's rules."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, n in enumerate(shape, rank - len(shape)):
            if n != 1:
                if result[axis] not in (1, n):
                    message = f"shapes {', '.join(map(str, shapes))} do not broadcast"
                    raise DisagreeingError(message, n, result[axis])
                result[axis] = n
    return tuple(result)


def _images(shape: Shape, dims: int) -> Shape:
    if len(shape) != (dims + 2 if dims else len(shape)) or len(shape) not in (3, 4, dims + 2):
        raise UnsupportedError(f"images of shape {list(shape)}")
    return shape


def _seen(window: SlidingWindow, shapes: tuple[Shape, ...]) -> Shape:
    batch, channels, *space = _images(shapes[0], window.dims)
    row = (1,) * (2 - len(space))
    kernel = window.kernel or row + shapes[1][2:]
    geometry = window.sliding.over((batch, *row, *space, channels), kernel)
    return (batch, channels, *geometry.out[len(row) :], *kernel[len(row) :])


def _convolved(contract: Contraction, window: Shape, filters: Shape) -> Shape:
    dims = (len(window) - 2) // 2
    if len(filters) != dims + 2 or filters[1] * contract.groups != window[1] or filters[0] % max(contract.groups, 1):
        raise UnsupportedError(f"{contract.groups} groups, {window[1]} channels, filters of shape {list(filters)}")
    return (window[0], filters[0], *window[2 : 2 + dims])


def _multiplied(contract: Contraction, left: Shape, right: Shape) -> Shape:
    if len(left) < 2 or len(right) < 2:
        raise UnsupportedError(f"a product of ranks {len(left)} and {len(right)}, expected 2 or more")
    a, b = contract.axes
    if left[a] != right[b]:
        raise UnsupportedError(f"a product of {left[a]} columns and {right[b]} rows")
    return (*broadcast(left[:-2], right[:-2]), left[-3 - a], right[-3 - b])


def reduced_axes(reduce: Reduce, rank: int) -> frozenset[int]:
    """Return the non-negative axes that `reduce` reduces in an argument of this rank."""
    axes = tuple(a + rank if a < 0 else a for a in reduce.axes)
    if any(not 0 <= a < max(rank, 1) for a in axes):
        raise UnsupportedError(f"a reduction over axes {list(reduce.axes)} of a value of rank {rank}")
    return frozenset(range(axes[0], rank)) if reduce.onward else frozenset(axes) & frozenset(range(rank))
