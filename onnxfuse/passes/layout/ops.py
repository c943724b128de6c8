"""Channels-last forms of operators: [batch, height, width, channels] in place of [batch, channels, ...].

An operator that is not in the table below, or is used in an unsupported form, stays channels first.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from onnxfuse import cuda, ops
from onnxfuse.graph.channels import FIRST, LAST, channels_last_axis, has_form
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import schema
from onnxfuse.passes.layout.channel_groups import channel_shuffle, group_norm, grouped_norm
from onnxfuse.passes.layout.convolutions import CONVOLUTIONS
from onnxfuse.passes.layout.writer import (
    ChannelsLastWriter,
    Form,
    between,
    both_ends,
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
    if node.domain or node.captures:
        return None
    if node.op in CONVOLUTIONS:
        return CONVOLUTIONS[node.op](graph, node) if graph.type(node.inputs[0]).dtype in types else None
    make = _FORMS.get(node.op, _pointwise if cuda.is_pointwise(node.op) else None)
    return None if make is None else make(graph, node)


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

    return Form(tuple(dict.fromkeys(reads)), (y,), write) if reads else None


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
    epsilon = np.float64(attributes["epsilon"])  # type: ignore[arg-type]
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


def _along_axis(graph: Graph, node: Node) -> Form | None:
    """Concat, Split, Softmax: one attribute is the axis."""
    outputs = tuple(o for o in node.outputs if o)
    axis = graph.attributes(node).get("axis")
    if not spatial(graph, *outputs) or not isinstance(axis, int):
        return None
    rank = len(graph.type(outputs[0]).shape or ())
    if node.op in (ops.Softmax, ops.LogSoftmax) and graph.opset < 13:  # over all axes from this one on
        return None
    data, others = (node.inputs, ()) if node.op == ops.Concat else (node.inputs[:1], node.inputs[1:])

    def write(to: ChannelsLastWriter) -> None:
        inputs, made = [*(whole_image(to, v) for v in data), *others], [to.last(o) if o else "" for o in node.outputs]
        to.copy(node, inputs, output=made, axis=channels_last_axis(rank, axis))

    reads = tuple(dict.fromkeys(v for v in data if not graph.is_constant(v)))
    return Form(reads, outputs, write) if reads else None


def _slice(graph: Graph, node: Node) -> Form | None:
    x, y = node.inputs[0], node.outputs[0]
    if not spatial(graph, x, y):
        return None
    rank = len(graph.type(x).shape or ())
    if graph.opset < 10:
        attributes = graph.attributes(node)
        axes = integers(attributes, "axes") or range(len(integers(attributes, "starts")))

        def write_attributes(to: ChannelsLastWriter) -> None:
            to.copy(node, [to.last(x)], output=to.last(y), axes=[channels_last_axis(rank, a) for a in axes])

        return Form((x,), (y,), write_attributes)
    given = node.inputs[3] if len(node.inputs) > 3 else ""
    array = graph.constant(given)
    if array is None:
        return None

    def write(to: ChannelsLastWriter) -> None:
        moved = np.asarray([channels_last_axis(rank, int(a)) for a in array.reshape(-1)], array.dtype)
        axes = to.derived(given, f"nhwc{rank}", lambda: moved)
        to.copy(node, {0: to.last(x), 3: axes}, output=to.last(y))

    return Form((x,), (y,), write)


def _pad(graph: Graph, node: Node) -> Form | None:
    x, y = node.inputs[0], node.outputs[0]
    if not images(graph, x, y):
        return None
    if graph.opset < 11:
        written = graph.attributes(node)["pads"]

        def write_attribute(to: ChannelsLastWriter) -> None:
            to.copy(node, [to.last(x)], output=to.last(y), pads=both_ends(np.asarray(written)).tolist())

        return Form((x,), (y,), write_attribute)
    pads = node.inputs[1]
    if any(node.inputs[3:]) or graph.element_count(pads) not in (None, 8):
        return None

    def write(to: ChannelsLastWriter) -> None:
        widths = entries(to, pads, (*LAST, *(4 + a for a in LAST)), f"{y}.pads")
        to.copy(node, {0: to.last(x), 1: widths}, output=to.last(y))

    return Form((x,), (y,), write)


def _resize(graph: Graph, node: Node) -> Form | None:
    x, y = node.inputs[0], node.outputs[0]
    attributes = graph.attributes(node)
    if attributes.get("mode") == b"linear":
        return _interpolated(graph, node)
    modes = (attributes.get("mode", b"nearest"), attributes.get("coordinate_transformation_mode", b""))
    if not images(graph, x, y) or modes[0] != b"nearest" or modes[1] == b"tf_crop_and_resize" or len(node.inputs) < 2:
        return None
    sizes = [i for i, v in enumerate(node.inputs) if i > 0 and v and graph.element_count(v) != 0]
    if any(graph.element_count(node.inputs[i]) not in (None, 4) for i in sizes) or attributes.get("axes"):
        return None

    def write(to: ChannelsLastWriter) -> None:
        moved = {i: entries(to, node.inputs[i], LAST, f"{y}.sizes") for i in sizes}
        to.copy(node, {0: to.last(x), **moved}, output=to.last(y))

    return Form((x,), (y,), write)


def _interpolated(graph: Graph, node: Node) -> Form | None:
    """Linear Resize between two Transposes, for a kernel: ONNX Runtime's requires channels before height and width."""
    x, attributes = node.inputs[0], graph.attributes(node)
    known = attributes.get("coordinate_transformation_mode", b"") in {c.encode() for c in cuda.CENTRES}
    others = ("axes", "antialias", "exclude_outside")
    whole = attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    if not known or not whole or any(attributes.get(o) for o in others) or graph.opset < 11:
        return None
    told = [graph.constant(v) for v in node.inputs[2:] if v and graph.element_count(v) != 0]
    numbers = told[0] if len(told) == 1 else None
    if numbers is None or numbers.size != 4 or not np.all(numbers > 0):
        return None
    kept = (1, 1) if np.issubdtype(numbers.dtype, np.floating) else (graph.type(x).shape or (None,) * 2)[:2]
    return between(graph, node) if tuple(numbers[:2]) == tuple(kept) else None


def _reduce(graph: Graph, node: Node) -> Form | None:
    x, y = node.inputs[0], node.outputs[0]
    attributes = graph.attributes(node)
    as_input = "axes" not in schema.moved(node.op, "", graph.opset)
    given = node.inputs[1] if as_input and len(node.inputs) > 1 else ""
    array = graph.constant(given) if as_input else np.asarray(attributes.get("axes", []))
    rank = graph.type(x).rank
    if rank is None or not has_form(rank) or array is None or array.size == 0:
        return None
    axes, keep = {int(a) % rank for a in array}, attributes.get("keepdims", 1) == 1
    turned_axes = {channels_last_axis(rank, a) for a in axes}
    # Without keepdims the remaining axes must be in the same order in both layouts; a signal's row axis goes, too.
    left = [channels_last_axis(rank, a) for a in range(rank) if a not in axes]
    if not keep and left != sorted(left):
        return None
    if not keep and rank == 3:
        turned_axes.add(1)

    def write(to: ChannelsLastWriter) -> None:
        output = to.last(y) if keep else y
        moved = np.asarray(sorted(turned_axes), np.int64)
        axes = to.derived(given, f"nhwc{rank}", lambda: moved) if as_input else moved.tolist()
        to.copy(node, [to.last(x)], output=output, axes=axes)

    return Form((x,), (y,) if keep else (), write)


_GLOBAL: dict[str, str] = {ops.GlobalAveragePool: ops.ReduceMean, ops.GlobalMaxPool: ops.ReduceMax}


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


def _global_pool(graph: Graph, node: Node) -> Form | None:
    # GlobalAveragePool(x) -> ReduceMean(x) over height and width
    x, y = node.inputs[0], node.outputs[0]
    if not spatial(graph, x, y):
        return None
    op, places = _GLOBAL[node.op], list(range(1, len(channels_last_type(graph.type(x)).shape or ()) - 1))

    def write(to: ChannelsLastWriter) -> None:
        to.add(op, to.last(x), axes=places, keepdims=1, output=to.last(y), name=node.proto.name)

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


_FORMS: dict[str, Callable[[Graph, Node], Form | None]] = {
    ops.MaxPool: between,
    ops.AveragePool: between,
    ops.DepthToSpace: between,
    ops.SpaceToDepth: between,
    ops.LRN: between,
    ops.GroupNormalization: group_norm,
    ops.InstanceNormalization: between,
    ops.BatchNormalization: _batch_normalization,
    ops.Concat: _along_axis,
    ops.Split: _along_axis,
    ops.Softmax: _along_axis,
    ops.LogSoftmax: _along_axis,
    ops.Slice: _slice,
    ops.Pad: _pad,
    ops.Resize: _resize,
    ops.Upsample: _resize,
    ops.ReduceMean: _reduce,
    ops.ReduceSum: _reduce,
    ops.ReduceMax: _reduce,
    ops.ReduceMin: _reduce,
    ops.ReduceL2: _reduce,
    ops.Flatten: _flat,
    ops.Reshape: _reshape,
    ops.GlobalAveragePool: _global_pool,
    ops.GlobalMaxPool: _global_pool,
    ops.Shape: _shape,
}
