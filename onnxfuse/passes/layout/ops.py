"""Channels-last forms of operators: [batch, height, width, channels] in place of [batch, channels, ...].

Most follow from what the operator's entry says: that it is elementwise, names axes, or takes images. An operator
of which nothing of that is known, or one used in an unsupported form, stays channels first.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxfuse import cuda, ops
from onnxfuse.graph.channels import FIRST, LAST, channels_last_axis, has_form
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.ops import Trait
from onnxfuse.ops.inputs import PER_AXIS, Axes, Padding
from onnxfuse.passes.layout.channel_groups import channel_shuffle, grouped_norm
from onnxfuse.passes.layout.convolutions import CONVOLUTIONS, convolution
from onnxfuse.passes.layout.writer import (
    ChannelsLastWriter,
    Form,
    between,
    channels_last_type,
    entries,
    images,
    integer,
    integers,
    many_outputs,
    operand,
    spatial,
    stands_still,
    whole_image,
)
from onnxfuse.shapes.types import ValueType


def form(graph: Graph, node: Node, types: Sequence[int]) -> Form | None:
    """Return the channels-last form of `node`, None if it has none; convolutions only of these element types."""
    if node.entry is None or node.domain or node.captures:
        return None
    if node.op == ops.ConvInteger and any(node.inputs[2:]):
        return None  # subtracts zero points, also beside the image
    if node.op in CONVOLUTIONS:
        return convolution(graph, node) if graph.type(node.inputs[0]).dtype in types else None
    special: Mapping[str, Callable[[Graph, Node], Form | None]] = {
        ops.BatchNormalization: _batch_normalization, ops.Reshape: _reshape, ops.Flatten: _flat, ops.Resize: _resize,
        ops.Upsample: _resize, ops.Shape: _shape,
    }  # fmt: skip
    if node.op in special:
        return special[node.op](graph, node)
    if node.entry.reduction:
        return _global_pool(graph, node, node.entry.reduction)
    if node.has(Trait.IMAGES):
        return between(graph, node)
    if node.has(Trait.NAMES_AXES):
        return _over_axes(graph, node, node.entry)
    return _pointwise(graph, node) if node.is_elementwise else None


def _pointwise(graph: Graph, node: Node) -> Form | None:
    y = node.outputs[0]
    whole = graph.type(y).rank
    if whole is None or not has_form(whole) or many_outputs(node):
        return None
    reads = []
    for value in node.inputs:
        rank = graph.type(value).rank if value else 0
        if not value or rank == 0 or graph.is_constant(value):
            continue
        if rank != whole:
            return None
        reads.append(value)

    def write(to: ChannelsLastWriter) -> None:
        to.copy(node, [operand(to, v, whole) for v in node.inputs], output=to.last(y))

    # A row of constants times a number, as what a zero point adds to each filter's sums, is computed in either order.
    rows = [v for v in node.inputs if v and graph.is_constant(v) and graph.type(v).rank == whole]
    return Form(tuple(dict.fromkeys(reads)), (y,), write) if reads or rows else None


def _batch_normalization(graph: Graph, node: Node) -> Form | None:
    """(x - mean) * (scale / sqrt(var + epsilon)) + shift, with weights along the last axis."""
    x, scale, shift, mean, variance = node.inputs
    y = node.outputs[0]
    attributes = graph.attributes(node)
    parameters = (scale, shift, mean, variance)
    if not spatial(graph, x, y) or many_outputs(node) or not all(graph.is_constant(v) for v in parameters):
        return None
    if attributes.get("training_mode") or attributes.get("spatial") == 0:
        return None
    epsilon = np.float64(attributes["epsilon"])  # type: ignore[arg-type]  # the schema says that it is a float
    element = onnx.helper.tensor_dtype_to_np_dtype(graph.type(x).dtype)
    a, b, m, v = (np.asarray(graph.constant(p)).astype(np.float64) for p in parameters)
    factor = (a / np.sqrt(v + epsilon)).astype(element)
    if not np.isfinite(factor.astype(np.float64)).all():
        return None

    def write(to: ChannelsLastWriter) -> None:
        type_ = channels_last_type(graph.type(y))
        means = to.derived(mean, "mean", lambda: m.astype(element))
        centred = to.add(ops.Sub, to.last(x), means, hint=f"{y}.centred", type_=type_)
        scaled = to.add(ops.Mul, centred, to.derived(scale, "factor", lambda: factor), hint=f"{y}.scaled", type_=type_)
        to.add(ops.Add, scaled, to.derived(shift, "shift", lambda: b.astype(element)), output=to.last(y))

    return Form((x,), (y,), write)


def _over_axes(graph: Graph, node: Node, entry: ops.Operator) -> Form | None:
    """What names axes, or has numbers for each, is permuted."""
    if entry.positions(*PER_AXIS):
        return _numbers_of_axes(graph, node, entry)
    return _named_axes(graph, node, entry) if "axes" in entry.inputs else _along_axis(graph, node)


def _along_axis(graph: Graph, node: Node) -> Form | None:
    """One attribute is the axis."""
    outputs, data = tuple(o for o in node.outputs if o), node.data
    axis = graph.attributes(node).get("axis")
    if not spatial(graph, *outputs) or not isinstance(axis, int):
        return None
    rank = len(graph.type(outputs[0]).shape or ())
    if node.has(Trait.SOFTMAX) and graph.opset < 13:  # over all axes from this one on
        return None

    def write(to: ChannelsLastWriter) -> None:
        images = {i: whole_image(to, v) for i, v in data.items()}
        results = [to.last(o) if o else "" for o in node.outputs]
        to.copy(node, images, output=results, axis=channels_last_axis(rank, axis))

    reads = tuple(dict.fromkeys(v for v in data.values() if not graph.is_constant(v)))
    return Form(reads, outputs, write) if reads else None


def _named_axes(graph: Graph, node: Node, entry: ops.Operator) -> Form | None:
    """`axes` are an attribute or a constant operand; a reduction may leave them out of its result."""
    x, y = node.inputs[0], node.outputs[0]
    attributes, rank, reduces = graph.attributes(node), graph.type(x).rank, Trait.REDUCTION in entry.traits
    as_input, at = graph.opset >= entry.moved["axes"], entry.position("axes")
    operand = node.inputs[at] if as_input and len(node.inputs) > at else ""
    array = graph.constant(operand) if as_input else np.asarray(integers(attributes, "axes"), np.int64)
    if not reduces and not as_input and array is not None and not array.size:
        array = np.arange(len(integers(attributes, "starts")))
    if reduces and not operand and not integers(attributes, "axes"):
        return _over_all_axes(graph, node, attributes)
    if rank is None or not has_form(rank) or array is None or array.size == 0:
        return None
    axes, keep = [int(a) % rank for a in array.reshape(-1)], not reduces or attributes.get("keepdims", 1) == 1
    moved = [channels_last_axis(rank, a) for a in axes]
    # Without keepdims the remaining axes must be in the same order in both layouts; a signal's row axis goes, too.
    order = [channels_last_axis(rank, a) for a in range(rank) if a not in axes]
    if not keep and order != sorted(order):
        return None
    if not keep and rank == 3:
        moved.append(1)
    if reduces:
        moved = sorted({*moved})

    def write(to: ChannelsLastWriter) -> None:
        output = to.last(y) if keep else y
        if as_input:
            name = to.derived(operand, f"nhwc{rank}", lambda: np.asarray(moved, array.dtype))
            to.copy(node, {0: to.last(x), at: name}, output=output)
        else:
            to.copy(node, [to.last(x)], output=output, axes=moved)

    return Form((x,), (y,) if keep else (), write)


def _over_all_axes(graph: Graph, node: Node, attributes: Mapping[str, Any]) -> Form | None:
    """One number of all elements, in whatever order they lie."""
    x = node.inputs[0]
    if not spatial(graph, x) or attributes.get("keepdims", 1) or attributes.get("noop_with_empty_axes"):
        return None
    return Form((x,), (), lambda to: to.copy(node, {0: to.last(x)}))


def _numbers_of_axes(graph: Graph, node: Node, entry: ops.Operator) -> Form | None:
    """Pads, scales or sizes of all axes are an attribute or operands."""
    x, y = node.inputs[0], node.outputs[0]
    of_some = "axes" in node.written or any(node.inputs[i] for i in entry.positions(Axes) if i < len(node.inputs))
    if not images(graph, x, y) or of_some:
        return None
    roles = {i: role for i, role in enumerate(entry.inputs.values()) if isinstance(role, PER_AXIS)}
    operands = {i: v for i, v in enumerate(node.inputs) if i in roles and v and graph.element_count(v) != 0}
    if any(graph.element_count(v) not in (None, 4, 8) for v in operands.values()):
        return None
    written = {name: value for name, value in node.written.items() if name in entry.moved and isinstance(value, list)}
    both_ends = (*LAST, *(4 + a for a in LAST))

    def write(to: ChannelsLastWriter) -> None:
        attributes: dict[str, Any] = {
            name: [value[a] for a in (both_ends if len(value) == 8 else LAST)] for name, value in written.items()
        }
        moved = {}
        for i, value in operands.items():
            count = graph.element_count(value) or (8 if isinstance(roles[i], Padding) else 4)
            moved[i] = entries(to, value, both_ends if count == 8 else LAST, f"{y}.order")
        to.copy(node, {0: to.last(x), **moved}, output=to.last(y), **attributes)

    return Form((x,), (y,), write) if written or operands else None


def _resize(graph: Graph, node: Node) -> Form | None:
    attributes, entry = graph.attributes(node), node.entry
    if attributes.get("mode") == b"linear":
        return _interpolated(graph, node)
    modes = (attributes.get("mode", b"nearest"), attributes.get("coordinate_transformation_mode", b""))
    if entry is None or modes[0] != b"nearest" or modes[1] == b"tf_crop_and_resize":
        return None
    return _numbers_of_axes(graph, node, entry)


def _interpolated(graph: Graph, node: Node) -> Form | None:
    """Linear Resize between two Transposes, for a kernel: ONNX Runtime's requires channels before height and width."""
    x, attributes = node.inputs[0], graph.attributes(node)
    supported = attributes.get("coordinate_transformation_mode", b"") in {c.encode() for c in cuda.CENTRES}
    others = ("axes", "antialias", "exclude_outside")
    whole = attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    if not supported or not whole or any(attributes.get(o) for o in others) or graph.opset < 11:
        return None
    constants = [graph.constant(v) for v in node.inputs[2:] if v and graph.element_count(v) != 0]
    numbers = constants[0] if len(constants) == 1 else None
    if numbers is None or numbers.size != 4 or not np.all(numbers > 0):
        return None
    unscaled = (1, 1) if np.issubdtype(numbers.dtype, np.floating) else (graph.type(x).shape or (None,) * 2)[:2]
    return between(graph, node) if tuple(numbers[:2]) == tuple(unscaled) else None


def _reshape(graph: Graph, node: Node) -> Form | None:
    return channel_shuffle(graph, node) or grouped_norm(graph, node) or _flat(graph, node)


def _flat(graph: Graph, node: Node) -> Form | None:
    """Flatten, or Reshape of an image whose two layouts are identical in memory."""
    x, y = node.inputs[0], node.outputs[0]
    if not spatial(graph, x) or not stands_still(graph.type(x).shape) or graph.is_constant(x):
        return None
    if node.op == ops.Flatten and graph.attributes(node)["axis"] != 1:
        return None
    if node.op == ops.Reshape:
        target = graph.constant(node.inputs[1])
        # A 0 copies an extent, and the axes after the batch are permuted.
        if target is None or 0 in target.reshape(-1)[1:] or graph.attributes(node).get("allowzero"):
            return None

    def write(to: ChannelsLastWriter) -> None:
        to.copy(node, {0: to.last(x)}, output=y)

    return Form((x,), (), write)


def _global_pool(graph: Graph, node: Node, reduction: str) -> Form | None:
    # GlobalAveragePool(x) -> ReduceMean(x) over height and width
    x, y = node.inputs[0], node.outputs[0]
    if not spatial(graph, x, y):
        return None
    pooled = list(range(1, len(channels_last_type(graph.type(x)).shape or ()) - 1))

    def write(to: ChannelsLastWriter) -> None:
        to.add(reduction, to.last(x), axes=pooled, keepdims=1, output=to.last(y), name=node.proto.name)

    return Form((x,), (y,), write)


def _shape(graph: Graph, node: Node) -> Form | None:
    # Shape(x) -> Gather(Shape(x channels last), permutation)
    x, y = node.inputs[0], node.outputs[0]
    if graph.type(x).rank != 4 or graph.is_constant(x):
        return None
    attributes = graph.attributes(node)
    wanted = FIRST[integer(attributes, "start", 0) : integer(attributes, "end", 4)]

    def write(to: ChannelsLastWriter) -> None:
        type_ = ValueType(onnx.TensorProto.INT64, (4,))
        extents = to.add(ops.Shape, to.last(x), hint=f"{y}.nhwc", type_=type_)
        to.add(ops.Gather, extents, indices=wanted, axis=0, output=y)

    return Form((x,), (), write)
