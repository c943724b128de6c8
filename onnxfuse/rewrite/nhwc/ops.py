"""How each operator is written channels last: [batch, height, width, channels] in place of [batch, channels, ...].

An operator that is not in the table below, or not in the way that it is used, stays channels first.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
import onnx
from onnx import NodeProto
from onnx.helper import make_node

from onnxfuse import kernels
from onnxfuse.model import schema
from onnxfuse.model.channels import FIRST, LAST, has_form, perm_of, place, to_first, to_last, with_row
from onnxfuse.model.graph import Graph, Node
from onnxfuse.model.types import ValueType, is_unknown
from onnxfuse.rewrite.nhwc.writer import (
    Form,
    Writer,
    both_ends,
    entries,
    images,
    inner,
    integer,
    integers,
    like,
    many_outputs,
    moved,
    named,
    operand,
    part,
    read_twice,
    spatial,
    stands_still,
    transpose,
    turned,
)


def form(graph: Graph, node: Node, types: Sequence[int]) -> Form | None:
    """Return the channels-last form of `node`, None where it has none; convolutions only of these element types."""
    if node.domain or node.captures:
        return None
    if node.op in _CONVOLUTIONS:
        return _CONVOLUTIONS[node.op](graph, node) if graph.type(node.inputs[0]).dtype in types else None
    make = _FORMS.get(node.op, _pointwise if kernels.is_pointwise(node.op) else None)
    return None if make is None else make(graph, node)


# ---- convolutions


def _conv(graph: Graph, node: Node) -> Form | None:
    w, y = node.inputs[1], node.outputs[0]
    attributes = graph.attributes(node)
    pad, pads = _padding(graph, node, attributes)
    x = node.inputs[0] if pad is None else pad.inputs[0]
    if not spatial(graph, x, y, w) or not graph.is_constant(w):
        return None
    rank = len(graph.type(x).shape or ())
    # Only the library's own op takes volumes, and it has no bfloat16.
    if rank == 5 and graph.type(x).dtype == onnx.TensorProto.BFLOAT16:
        return None
    if pad is not None:
        attributes = {**attributes, "pads": pads}

    def write(to: Writer) -> list[NodeProto]:
        weight = graph.constant(w)
        assert weight is not None, w
        product, rest = _apart(to, node)
        if _is_product(attributes, weight.shape):
            # Conv<1x1>(x, w[O,C,1,1]) -> MatMul(x[N,H,W,C], w[C,O])
            packed = to.constant(w, "co", lambda: weight.reshape(weight.shape[:2]).T)
            return [named(make_node("MatMul", [to.last(x), packed], [product]), node), *rest]
        depthwise = weight.shape[1] == 1 and attributes.get("group") == weight.shape[0]
        # Depthwise weights are [kernel, kernel, C, 1]: neighbouring threads work on neighbouring channels. Of larger
        # windows there is no such kernel.
        by_pixel = depthwise and rank != 5 and prod(weight.shape[2:]) <= kernels.MOST_TAPS
        order, back = ((2, 3, 0, 1), (2, 3, 0, 1)) if by_pixel else (to_last(rank), to_first(rank))
        oihw = weight.reshape(with_row(weight.shape, 1))
        packed = to.constant(w, "hwc" if by_pixel else "ohwi", lambda: oihw.transpose(order))
        first, kernel, convolved = inner(to, x), inner(to, w), inner(to, y)
        changes = _over_rows(attributes, rank) if pad is None else {"pads": pads, "auto_pad": None}
        return [
            transpose(to.last(x), first, to_first(rank)),
            transpose(packed, kernel, back),
            like(node, [first, kernel], [convolved], **changes),
            transpose(convolved, product, to_last(rank)),
            *rest,
        ]

    return Form((x,), (y,), write, saves=True, inner=() if pad is None else (pad,))


def _padding(
    graph: Graph, node: Node, attributes: Mapping[str, schema.AttributeValue]
) -> tuple[Node | None, list[int]]:
    """Return the Pad before a Conv that can be the convolution's own, and the padding of both together."""
    pad = graph.producer(node.inputs[0])
    if pad is None or pad.op != "Pad" or pad.domain or graph.opset < 11 or read_twice(graph, pad):
        return None, []
    value, axes = (pad.inputs[i] if len(pad.inputs) > i else "" for i in (2, 3))
    widths, number = graph.constant(pad.inputs[1]), graph.constant(value)
    zeros = not value or (number is not None and not number.any())
    if widths is None or widths.size != 8 or axes or not zeros or (widths < 0).any():
        return None, []
    constant = graph.attributes(pad).get("mode", b"constant") == b"constant"
    if not constant or widths.reshape(2, 4)[:, :2].any() or attributes.get("auto_pad") not in (b"NOTSET", b"VALID"):
        return None, []
    own = integers(attributes, "pads") if attributes.get("auto_pad") == b"NOTSET" else []
    added = widths.reshape(2, 4)[:, 2:].reshape(-1)
    return pad, [a + int(b) for a, b in zip(own or [0] * 4, added, strict=True)]


def _over_rows(attributes: Mapping[str, schema.AttributeValue], rank: int) -> dict[str, list[int]]:
    """Return what a convolution over signals says as one over images of one row; nothing for other ranks."""
    if rank != 3:
        return {}
    ends = integers(attributes, "pads")
    along = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0, "output_shape": 1}
    changes = {name: [one, *told] for name, one in along.items() if (told := integers(attributes, name))}
    return {**changes, **({"pads": [0, ends[0], 0, ends[1]]} if ends else {})}


def _conv_transpose(graph: Graph, node: Node) -> Form | None:
    x, w = node.inputs[:2]
    y = node.outputs[0]
    rank = graph.type(x).rank
    # Of volumes the library's own takes channels first alone.
    if not spatial(graph, x, y, w) or rank not in (3, 4) or not graph.is_constant(w):
        return None

    def write(to: Writer) -> list[NodeProto]:
        weight = graph.constant(w)
        assert weight is not None, w
        kernel = w if rank == 4 else to.constant(w, "row", lambda: weight.reshape(with_row(weight.shape, 1)))
        product, rest = _apart(to, node)
        first, convolved = inner(to, x), inner(to, y)
        return [
            transpose(to.last(x), first, FIRST),
            like(node, [first, kernel], [convolved], **_over_rows(graph.attributes(node), rank)),
            transpose(convolved, product, LAST),
            *rest,
        ]

    return Form((x,), (y,), write, saves=True)


def _apart(to: Writer, node: Node) -> tuple[str, list[NodeProto]]:
    """Return the name of the convolution without its bias, and the nodes that add the bias: [O] to [N,H,W,O]."""
    y = node.outputs[0]
    if len(node.inputs) < 3 or not node.inputs[2]:
        return to.last(y), []
    product = to.fresh(f"{y}.product", turned(to.graph.type(y)))
    return product, [make_node("Add", [product, node.inputs[2]], [to.last(y)])]


def _is_product(attributes: Mapping[str, schema.AttributeValue], weight: Sequence[int]) -> bool:
    """Return whether a convolution is a matrix product over the channels, pixel by pixel."""
    plain = all(step == 1 for step in integers(attributes, "strides")) and not any(integers(attributes, "pads"))
    return plain and attributes.get("group", 1) == 1 and all(extent == 1 for extent in weight[2:])


# ---- operators that exist channels first alone: between two Transposes, for the library's own or a fused kernel


def _between(graph: Graph, node: Node) -> Form | None:
    x, y = node.inputs[0], node.outputs[0]
    dilated = any(step != 1 for step in integers(graph.attributes(node), "dilations"))
    # The library's AveragePool knows no dilations.
    if not images(graph, x, y) or many_outputs(node) or (node.op == "AveragePool" and dilated):
        return None

    def write(to: Writer) -> list[NodeProto]:
        first, made = inner(to, x), inner(to, y)
        dropped = {"dilations": None} if node.op == "AveragePool" else {}
        return [
            transpose(to.last(x), first, FIRST),
            like(node, [first, *node.inputs[1:]], [made], **dropped),
            transpose(made, to.last(y), LAST),
        ]

    return Form((x,), (y,), write)


# ---- operators that take the axes in any order


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

    def write(to: Writer) -> list[NodeProto]:
        return [like(node, [operand(to, v, whole) for v in node.inputs], [to.last(y)])]

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

    def write(to: Writer) -> list[NodeProto]:
        inner = [to.fresh(f"{y}.{step}", turned(graph.type(y))) for step in ("centred", "scaled")]
        return [
            make_node("Sub", [to.last(x), to.constant(mean, "mean", lambda: m.astype(element))], [inner[0]]),
            make_node("Mul", [inner[0], to.constant(scale, "factor", lambda: factor)], [inner[1]]),
            make_node("Add", [inner[1], to.constant(shift, "shift", lambda: b.astype(element))], [to.last(y)]),
        ]

    return Form((x,), (y,), write)


def _along_axis(graph: Graph, node: Node) -> Form | None:
    """Concat, Split, Softmax: one attribute names the axis."""
    outputs = tuple(o for o in node.outputs if o)
    axis = graph.attributes(node).get("axis")
    if not spatial(graph, *outputs) or not isinstance(axis, int):
        return None
    rank = len(graph.type(outputs[0]).shape or ())
    if node.op in ("Softmax", "LogSoftmax") and graph.opset < 13:  # over all axes from this one on
        return None
    data, others = (node.inputs, ()) if node.op == "Concat" else (node.inputs[:1], node.inputs[1:])

    def write(to: Writer) -> list[NodeProto]:
        inputs = [*(part(to, v) for v in data), *others]
        return [like(node, inputs, [to.last(o) if o else "" for o in node.outputs], axis=place(rank, axis))]

    reads = tuple(dict.fromkeys(v for v in data if not graph.is_constant(v)))
    return Form(reads, outputs, write) if reads else None


def _slice(graph: Graph, node: Node) -> Form | None:
    x, y = node.inputs[0], node.outputs[0]
    if not images(graph, x, y):
        return None
    if graph.opset < 10:
        attributes = graph.attributes(node)
        axes = integers(attributes, "axes") or range(len(integers(attributes, "starts")))

        def write_attributes(to: Writer) -> list[NodeProto]:
            return [like(node, [to.last(x)], [to.last(y)], axes=[FIRST[a] for a in axes])]

        return Form((x,), (y,), write_attributes)
    given = node.inputs[3] if len(node.inputs) > 3 else ""
    array = graph.constant(given)
    if array is None:
        return None

    def write(to: Writer) -> list[NodeProto]:
        axes = to.constant(given, "nhwc", lambda: moved(array))
        return [like(node, [to.last(x), *node.inputs[1:3], axes, *node.inputs[4:]], [to.last(y)])]

    return Form((x,), (y,), write)


def _pad(graph: Graph, node: Node) -> Form | None:
    x, y = node.inputs[0], node.outputs[0]
    if not images(graph, x, y):
        return None
    if graph.opset < 11:
        written = graph.attributes(node)["pads"]

        def write_attribute(to: Writer) -> list[NodeProto]:
            return [like(node, [to.last(x)], [to.last(y)], pads=both_ends(np.asarray(written)).tolist())]

        return Form((x,), (y,), write_attribute)
    pads, axes = node.inputs[1], node.inputs[3] if len(node.inputs) > 3 else ""
    widths, named = graph.constant(pads), graph.constant(axes)
    if (axes and named is None) or (widths is not None and not axes and widths.size != 8):
        return None

    def write(to: Writer) -> list[NodeProto]:
        inputs = [to.last(x), *node.inputs[1:]]
        before: list[NodeProto] = []
        if named is not None:
            inputs[3] = to.constant(axes, "nhwc", lambda: moved(named))
        else:
            inputs[1], before = entries(to, pads, (*LAST, *(4 + a for a in LAST)), f"{y}.pads")
        return [*before, like(node, inputs, [to.last(y)])]

    return Form((x,), (y,), write)


def _resize(graph: Graph, node: Node) -> Form | None:
    x, y = node.inputs[0], node.outputs[0]
    attributes = graph.attributes(node)
    if attributes.get("mode") == b"linear":
        return _interpolated(graph, node)
    modes = (attributes.get("mode", b"nearest"), attributes.get("coordinate_transformation_mode", b""))
    if not images(graph, x, y) or modes[0] != b"nearest" or modes[1] == b"tf_crop_and_resize" or len(node.inputs) < 2:
        return None
    axes = integers(attributes, "axes")
    sizes = [i for i, v in enumerate(node.inputs) if i > 0 and v and graph.element_count(v) != 0]
    if any(graph.element_count(node.inputs[i]) not in (None, 4) for i in sizes) and not axes:
        return None

    def write(to: Writer) -> list[NodeProto]:
        if axes:
            moved = [FIRST[a] for a in axes]
            return [like(node, [to.last(x), *node.inputs[1:]], [to.last(y)], axes=moved)]
        inputs, before = [to.last(x), *node.inputs[1:]], []
        for i in sizes:
            inputs[i], gather = entries(to, node.inputs[i], LAST, f"{y}.sizes")
            before += gather
        return [*before, like(node, inputs, [to.last(y)])]

    return Form((x,), (y,), write)


def _interpolated(graph: Graph, node: Node) -> Form | None:
    """Between two Transposes, for a kernel: ONNX Runtime's wants the channels before height and width."""
    x, attributes = node.inputs[0], graph.attributes(node)
    known = attributes.get("coordinate_transformation_mode", b"") in {c.encode() for c in kernels.CENTRES}
    others = ("axes", "antialias", "exclude_outside")
    whole = attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    if not known or not whole or any(attributes.get(o) for o in others) or graph.opset < 11:
        return None
    told = [graph.constant(v) for v in node.inputs[2:] if v and graph.element_count(v) != 0]
    numbers = told[0] if len(told) == 1 else None
    if numbers is None or numbers.size != 4 or not np.all(numbers > 0):
        return None
    kept = (1, 1) if np.issubdtype(numbers.dtype, np.floating) else (graph.type(x).shape or (None,) * 2)[:2]
    return _between(graph, node) if tuple(numbers[:2]) == tuple(kept) else None


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
    turned_axes = {place(rank, a) for a in axes}
    # Without keepdims the axes that are left must stand in the same order either way, and a signal's row goes, too.
    left = [place(rank, a) for a in range(rank) if a not in axes]
    if not keep and left != sorted(left):
        return None
    if not keep and rank == 3:
        turned_axes.add(1)

    def write(to: Writer) -> list[NodeProto]:
        output = to.last(y) if keep else y
        moved = np.asarray(sorted(turned_axes), np.int64)
        if as_input:
            return [like(node, [to.last(x), to.constant(given, f"nhwc{rank}", lambda: moved)], [output])]
        return [like(node, [to.last(x)], [output], axes=moved.tolist())]

    return Form((x,), (y,) if keep else (), write)


_GLOBAL = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}


def _reshape(graph: Graph, node: Node) -> Form | None:
    return _channel_shuffle(graph, node) or _grouped_norm(graph, node) or _flat(graph, node)


def _flat(graph: Graph, node: Node) -> Form | None:
    """Flatten or Reshape of numbers that lie in memory alike either way."""
    x, y = node.inputs[0], node.outputs[0]
    if not spatial(graph, x) or not stands_still(graph.type(x).shape) or graph.is_constant(x):
        return None
    if node.op == "Flatten" and graph.attributes(node)["axis"] != 1:
        return None
    if node.op == "Reshape":
        target = graph.constant(node.inputs[1])
        # A 0 takes an extent over, and those of the axes after the batch are others.
        if target is None or 0 in target.reshape(-1)[1:] or graph.attributes(node).get("allowzero"):
            return None

    def write(to: Writer) -> list[NodeProto]:
        return [like(node, [to.last(x), *node.inputs[1:]], [y])]

    return Form((x,), (), write)


GROUP_ELEMENTS = 262_144
"""Of a group of channels that a cluster of blocks holds in registers; a walk along runs of few channels is slow.

1 x 512 x 512 x 128 by 32 groups, float16, H200, 2026-11: 641 us, channels first 88; 8 x 64 x 64 x 320 43 and 18, beside
two Transposes of about 9.
"""


def _fits(graph: Graph, x: str, groups: int) -> bool:
    """Return whether a group of channels is not known to be too large."""
    shape = graph.type(x).shape or ()
    known = [n for n in shape[1:] if isinstance(n, int)]
    return groups > 0 and prod(known) // groups <= GROUP_ELEMENTS


def _group_norm(graph: Graph, node: Node) -> Form | None:
    groups = integer(graph.attributes(node), "num_groups", 0)
    return _between(graph, node) if _fits(graph, node.inputs[0], groups) else None


def _grouped_norm(graph: Graph, node: Node) -> Form | None:
    """Group normalization as [N, C, H, W] -> [N, groups, rest] -> InstanceNormalization -> [N, C, H, W]."""
    norm = graph.producer(node.inputs[0])
    grouped = graph.producer(norm.inputs[0]) if norm is not None and norm.op == "InstanceNormalization" else None
    if norm is None or grouped is None or grouped.op != "Reshape" or any(n.domain for n in (norm, grouped)):
        return None
    x, y = grouped.inputs[0], node.outputs[0]
    if not images(graph, x, y) or graph.type(x).shape != graph.type(y).shape or graph.type(norm.outputs[0]).rank != 3:
        return None
    target = graph.constant(grouped.inputs[1])
    groups = int(target.reshape(-1)[1]) if target is not None and target.size == 3 else 0
    if any(read_twice(graph, n) for n in (grouped, norm)) or not _fits(graph, x, groups):
        return None

    def write(to: Writer) -> list[NodeProto]:
        first, made = inner(to, x), inner(to, y)
        return [
            transpose(to.last(x), first, FIRST),
            like(grouped, [first, *grouped.inputs[1:]], [grouped.outputs[0]]),
            norm.proto,
            like(node, [norm.outputs[0], *node.inputs[1:]], [made]),
            transpose(made, to.last(y), LAST),
        ]

    return Form((x,), (y,), write, inner=(grouped, norm))


def _channel_shuffle(graph: Graph, node: Node) -> Form | None:
    """[N, C, H, W] -> [N, a, b, H, W] -> [N, b, a, H, W] -> [N, C, H, W]: the channels of `a` groups dealt out."""
    swap = graph.producer(node.inputs[0])
    apart = graph.producer(swap.inputs[0]) if swap is not None and perm_of(swap) == (0, 2, 1, 3, 4) else None
    if swap is None or apart is None or apart.op != "Reshape" or apart.domain:
        return None
    x, y = apart.inputs[0], node.outputs[0]
    before, split, after = (graph.type(v).shape for v in (x, apart.outputs[0], y))
    if before is None or split is None or after is None or len(before) != 4 or before[1:] != after[1:]:
        return None
    if split[3:] != before[2:] or any(is_unknown(extent) for extent in before[1:]):
        return None
    groups = split[1:3]
    if not all(isinstance(g, int) for g in groups) or any(read_twice(graph, n) for n in (apart, swap)):
        return None

    def write(to: Writer) -> list[NodeProto]:
        rows = turned(graph.type(x))
        assert rows.shape is not None, x
        lead, c = rows.shape[:3], rows.shape[3]
        parts = to.fresh(f"{y}.groups", ValueType(rows.dtype, (*lead, *groups)))
        dealt = to.fresh(f"{y}.dealt", ValueType(rows.dtype, (*lead, *reversed(groups))))
        # 0 takes over batch, height and width.
        apart_to = to.constant(y, "groups", lambda: np.asarray([0, 0, 0, *groups], np.int64))
        joined_to = to.constant(y, "channels", lambda: np.asarray([0, 0, 0, c], np.int64))
        return [
            make_node("Reshape", [to.last(x), apart_to], [parts]),
            transpose(parts, dealt, (0, 1, 2, 4, 3)),
            named(make_node("Reshape", [dealt, joined_to], [to.last(y)]), node),
        ]

    return Form((x,), (y,), write, inner=(apart, swap))


def _global_pool(graph: Graph, node: Node) -> Form | None:
    # GlobalAveragePool(x) -> ReduceMean(x) over height and width
    x, y = node.inputs[0], node.outputs[0]
    if not spatial(graph, x, y):
        return None
    op, places = _GLOBAL[node.op], list(range(1, len(turned(graph.type(x)).shape or ()) - 1))

    def write(to: Writer) -> list[NodeProto]:
        if "axes" in schema.moved(op, "", graph.opset):
            return [named(make_node(op, [to.last(x)], [to.last(y)], axes=places, keepdims=1), node)]
        axes = to.constant(y, "axes", lambda: np.asarray(places, np.int64))
        return [named(make_node(op, [to.last(x), axes], [to.last(y)], keepdims=1), node)]

    return Form((x,), (y,), write)


def _shape(graph: Graph, node: Node) -> Form | None:
    # Shape(x) -> Gather(Shape(x channels last), where each extent stands)
    x, y = node.inputs[0], node.outputs[0]
    if graph.type(x).rank != 4 or graph.is_constant(x):
        return None
    attributes = graph.attributes(node)
    wanted = FIRST[integer(attributes, "start", 0) : integer(attributes, "end", 4)]

    def write(to: Writer) -> list[NodeProto]:
        extents = to.fresh(f"{y}.nhwc", ValueType(onnx.TensorProto.INT64, (4,)))
        order = to.constant(y, "order", lambda: np.asarray(wanted, np.int64))
        return [
            make_node("Shape", [to.last(x)], [extents]),
            named(make_node("Gather", [extents, order], [y], axis=0), node),
        ]

    return Form((x,), (), write)


_CONVOLUTIONS = {"Conv": _conv, "ConvTranspose": _conv_transpose}
_FORMS: dict[str, Callable[[Graph, Node], Form | None]] = {
    "MaxPool": _between,
    "AveragePool": _between,
    "DepthToSpace": _between,
    "SpaceToDepth": _between,
    "LRN": _between,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _between,
    "BatchNormalization": _batch_normalization,
    "Concat": _along_axis,
    "Split": _along_axis,
    "Softmax": _along_axis,
    "LogSoftmax": _along_axis,
    "Slice": _slice,
    "Pad": _pad,
    "Resize": _resize,
    "Upsample": _resize,
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "ReduceMax": _reduce,
    "ReduceMin": _reduce,
    "ReduceL2": _reduce,
    "Flatten": _flat,
    "Reshape": _reshape,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "Shape": _shape,
}
