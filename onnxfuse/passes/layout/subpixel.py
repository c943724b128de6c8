"""Rewrite a channels-last transposed convolution as a stride-1 convolution with subpixel outputs (depth to space).

Of stride s, y[s n + r - p] = sum over m of x[n - m] w[r + m s]: the s pixels of block n read the same k / s elements of
x, each by its own weights. So it is a convolution over k / s elements whose output channels are the pixels of a block,
which are then adjacent in memory; where the padding p ends inside a block, its first pixels are sliced off. Libraries
compute the gradient of a convolution instead, for which few kernels exist: for 64 to 32 channels, 8192 elements, kernel
8, stride 4, float16, cuDNN's search chose one of 7034 us on an H100, and others on other days (2026-11).

Where the stride does not divide the kernel, the pixels of a block read different numbers of elements. Zero padding of
the missing weights would turn an infinity in x into a NaN that the original does not produce: those are not rewritten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from operator import add, mul
from typing import Any

import numpy as np

from onnxfuse import ops
from onnxfuse.cuda.isa.factors import ALIGNED
from onnxfuse.graph.channels import FIRST, LAST
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import schema
from onnxfuse.passes.layout.writer import (
    ChannelsLastWriter,
    Form,
    channels_last_type,
    integers,
)
from onnxfuse.shapes.extents import computed, reshape_target
from onnxfuse.shapes.types import Dim, ValueType

END = 2**62
"""End of a Slice that is unbounded: above any extent, and below what validation rejects."""


@dataclass(frozen=True)
class _Axis:
    """One axis of the convolution over blocks."""

    stride: int
    """Pixels of a block."""
    taps: int
    """Input elements that a block reads."""
    pads: tuple[int, int]
    """Padding elements before and after those of x, so that there is a block for each pixel."""
    crop: tuple[int, int]
    """Pixels of the first and of the last block that are not part of y."""


@dataclass(frozen=True)
class _Layer:
    """A ConvTranspose and its convolution over blocks."""

    node: Node
    axes: tuple[_Axis, ...]
    blocks: ValueType
    """The convolution's output: [batch, blocks, pixels of a block and channels]."""
    weight: np.ndarray
    """The original weight, [channels, filters, ...]."""

    @property
    def filters(self) -> int:
        return int(self.weight.shape[1])

    @property
    def extents(self) -> tuple[Dim, ...]:
        """Extents of the batch and of the blocks."""
        return (self.blocks.shape or ())[:-1]

    @property
    def is_product(self) -> bool:
        """Whether a block depends on one input element."""
        return all(a.taps == 1 and a.pads == (0, 0) for a in self.axes)


def subpixel(graph: Graph, node: Node) -> Form | None:
    """Return a ConvTranspose as a convolution over blocks; None if that is not provably exact and at least as fast."""
    x, w, *bias = (v for v in node.inputs if v)
    weight, rows = graph.constant(w), channels_last_type(graph.type(x)).shape
    axes = None if weight is None or rows is None else _axes(graph.attributes(node), weight.shape[2:], rows)
    if weight is None or rows is None or axes is None or not all(graph.is_constant(b) for b in bias):
        return None
    pixels = prod(a.stride for a in axes)
    channels, block = weight.shape[0], weight.shape[1] * pixels
    extents = [computed(add, n, sum(a.pads) - a.taps + 1) for n, a in zip(rows[1:-1], axes, strict=True)]
    if pixels == 1 or channels % ALIGNED or block % ALIGNED or not _interleaves(extents, axes):
        return None
    layer = _Layer(node, axes, ValueType(graph.type(x).dtype, (rows[0], *extents, block)), np.asarray(weight))
    if len(axes) == 3 and not layer.is_product:  # no onnxfuse kernel supports volumes
        return None

    return Form((x,), (node.outputs[0],), lambda to: _write(to, layer), saves=True)


# ---- sizes


def _axes(
    attributes: Mapping[str, schema.AttributeValue], kernel: Sequence[int], rows: Sequence[Dim]
) -> tuple[_Axis, ...] | None:
    count = len(kernel)
    if attributes.get("group", 1) != 1 or any(d != 1 for d in integers(attributes, "dilations")):
        return None
    strides = integers(attributes, "strides") or [1] * count
    more = integers(attributes, "output_padding") or [0] * count
    result = [_Axis(1, 1, (0, 0), (0, 0))] if count == 1 else []  # a signal is one row
    for at, extent in enumerate(rows[-1 - count : -1]):
        padding = ends(attributes, at, count, extent, kernel[at] - strides[at] + more[at])
        if padding is None or kernel[at] % strides[at]:
            return None
        taps, before, after = kernel[at] // strides[at], padding[0], padding[1] - more[at]
        # Block 0 is the one that would contain pixel 0 without padding.
        pads = taps - 1 - before // strides[at], taps - 1 - after // strides[at]
        if min(pads) < 0:
            return None
        result.append(_Axis(strides[at], taps, pads, (before % strides[at], after % strides[at])))
    return tuple(result)


def ends(
    attributes: Mapping[str, schema.AttributeValue], at: int, count: int, extent: Dim, beyond: int
) -> tuple[int, int] | None:
    """Return the padding before and after; `beyond`: output pixels in excess of a stride for each input element."""
    pads = integers(attributes, "pads") or [0] * 2 * count
    sizes, how = integers(attributes, "output_shape"), attributes.get("auto_pad", b"NOTSET")
    if sizes:
        strides = integers(attributes, "strides") or [1] * count
        total = extent * strides[at] + beyond - sizes[at - count] if isinstance(extent, int) else -1
    elif how in (b"SAME_UPPER", b"SAME_LOWER"):
        total = beyond
    else:
        return (pads[at], pads[at + count]) if how == b"NOTSET" else (0, 0)
    # Operator sets and libraries differ on which end receives the extra pixel of an odd padding.
    return (total // 2, total // 2) if total >= 0 and total % 2 == 0 else None


# ---- nodes


def _write(to: ChannelsLastWriter, layer: _Layer) -> None:
    y, extents, filters = layer.node.outputs[0], layer.extents, layer.filters
    blocks = _convolution(to, layer, f"{y}.blocks")
    for b in (v for v in layer.node.inputs[2:] if v):
        numbers = to.graph.constant(b)
        assert numbers is not None, b
        pixels = prod(a.stride for a in layer.axes)
        each = to.derived(b, f"each{pixels}", partial(np.tile, numbers, pixels))
        blocks = to.add(ops.Add, blocks, each, hint=f"{y}.biased", type_=layer.blocks)
    if not any(any(a.crop) for a in layer.axes):
        _interleave(to, layer, blocks, to.last(y))
        return
    size = (computed(mul, n, a.stride) for n, a in zip(extents[1:], layer.axes, strict=True))
    whole = to.value(f"{y}.whole", ValueType(layer.blocks.dtype, (extents[0], *size, filters)))
    _interleave(to, layer, blocks, whole)
    # The pixels outside y.
    starts, ends = [a.crop[0] for a in layer.axes], [-a.crop[1] or END for a in layer.axes]
    to.add(ops.Slice, whole, starts=starts, ends=ends, axes=list(range(1, len(starts) + 1)), output=to.last(y))


def _convolution(to: ChannelsLastWriter, layer: _Layer, hint: str) -> str:
    """Compute all blocks."""
    (x, w), axes, (channels, *_) = layer.node.inputs[:2], layer.axes, layer.weight.shape
    packed = _packed(layer.weight, axes)
    kind = f"blocks{'x'.join(str(a.stride) for a in axes)}"
    if layer.is_product:
        right = to.derived(w, f"{kind}.co", lambda: packed.reshape(-1, channels).T)
        return to.add(ops.MatMul, to.last(x), right, hint=hint, type_=layer.blocks, name=layer.node.proto.name)
    dtype, (batch, *spatial) = layer.blocks.dtype, layer.extents
    right, first = to.derived(w, kind, lambda: packed), to.first(x)
    kernel_type = ValueType(dtype, (len(packed), channels, *packed.shape[1:-1]))
    kernel = to.add(ops.Transpose, right, perm=FIRST, hint=f"{w}.nchw", type_=kernel_type)
    pads, type_ = [a.pads[end] for end in (0, 1) for a in axes], ValueType(dtype, (batch, len(packed), *spatial))
    name = layer.node.proto.name
    convolved = to.add(ops.Conv, first, kernel, pads=pads, hint=f"{hint}.nchw", type_=type_, name=name)
    return to.add(ops.Transpose, convolved, perm=LAST, hint=hint, type_=layer.blocks)


def _packed(weight: np.ndarray, axes: Sequence[_Axis]) -> np.ndarray:
    """Return [C, O, ...] as [pixels of a block and O, taps of each axis, C], with taps in reverse order."""
    split = weight.reshape(*weight.shape[:2], *(n for a in axes for n in (a.taps, a.stride)))
    taps, pixels = range(2, split.ndim, 2), range(3, split.ndim, 2)
    return np.flip(split, tuple(taps)).transpose(*pixels, 1, *taps, 0).reshape(-1, *(a.taps for a in axes), len(weight))


def _interleaves(extents: Sequence[Dim], axes: Sequence[_Axis]) -> bool:
    """Return whether blocks can be interleaved by Reshapes, or by DepthToSpace if several of their extents are open."""
    *outer, last = (a.stride for a in axes)
    return _are_adjacent(axes) or _at_most_one_open(extents) or outer == [last]


def _are_adjacent(axes: Sequence[_Axis]) -> bool:
    """Return whether the pixels of a block are adjacent already."""
    return all(a.stride == 1 for a in axes[:-1])


def _at_most_one_open(extents: Sequence[Dim]) -> bool:
    return sum(not isinstance(n, int) for n in extents) <= 1


def _interleave(to: ChannelsLastWriter, layer: _Layer, blocks: str, whole: str) -> None:
    """Interleave the pixels of blocks (depth to space)."""
    filters, (batch, *spatial), strides = layer.filters, layer.extents, [a.stride for a in layer.axes]
    size, count = [computed(mul, n, s) for n, s in zip(spatial, strides, strict=True)], len(spatial)

    def add(step: str, extents: Sequence[Dim], op: str, source: str, **operands: Any) -> str:
        type_ = ValueType(layer.blocks.dtype, tuple(extents))
        return to.add(op, source, hint=f"{whole}.{step}", type_=type_, **operands)

    def join(pixels: str, extents: Sequence[Dim]) -> None:
        target = reshape_target(extents, (batch, *size, filters)) or _target(to, layer, blocks, whole)
        to.add(ops.Reshape, pixels, shape=target, output=whole)

    if _are_adjacent(layer.axes):
        join(blocks, (batch, *spatial, filters * strides[-1]))
        return
    if not _at_most_one_open(spatial):
        first = add("first", (batch, filters * prod(strides), *spatial), ops.Transpose, blocks, perm=FIRST)
        pixels = add("put", (batch, filters, *size), ops.DepthToSpace, first, blocksize=strides[0])
        to.transpose(pixels, LAST, whole)
        return
    # [n, h, w, a, b c] -> [n, h, a, w, b c] -> [n, h a, w b, c]
    *outer, last = strides
    run = last * filters
    axis_by_axis = [at for axis in range(1, count) for at in (axis, axis + count)]
    split = add("apart", (batch, *spatial, *outer, run), ops.Reshape, blocks, shape=[*[0] * (count + 1), *outer, run])
    interleaved = (batch, *(n for pair in zip(spatial, outer, strict=False) for n in pair), spatial[-1], run)
    mixed = add("mixed", interleaved, ops.Transpose, split, perm=[0, *axis_by_axis, count, 2 * count])
    join(mixed, interleaved)


def _target(to: ChannelsLastWriter, layer: _Layer, blocks: str, whole: str) -> str:
    """Compute the target that no constant states: the batch, which may be empty, and one of the extents are open."""
    strides = [1, *(a.stride for a in layer.axes)]
    # [n, h, w] * [1, a, b] and c; these are operators through which ONNX's inference follows integers.
    if to.graph.opset >= 15:
        extents = to.add(ops.Shape, blocks, end=len(strides), hint=f"{whole}.blocks")
    else:
        shape = to.add(ops.Shape, blocks, hint=f"{whole}.shape")
        extents = to.add(ops.Slice, shape, starts=[0], ends=[len(strides)], axes=[0], hint=f"{whole}.blocks")
    size = to.add(ops.Mul, extents, to.constant(f"{whole}.strides", strides), hint=f"{whole}.size")
    return to.add(ops.Concat, size, to.constant(f"{whole}.filters", [layer.filters]), axis=0, hint=f"{whole}.target")
