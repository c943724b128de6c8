"""Make the axes of Pad and nearest Resize explicit for all dimensions, in graphs with convolutions.

From operator set 18 on both may list the axes that their amounts apply to. ONNX Runtime 1.31 moves Transposes, such as
those at the edges of channels-last regions, through them as if there were an amount for each axis: it then fails to
load or to run the model.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.passes.layout.convolutions import CONVOLUTIONS
from onnxfuse.passes.layout.writer import integers
from onnxfuse.passes.rewriting.node_replacement import fresh_constant, replace_each
from onnxfuse.shapes.types import ValueType

AXES = 3
"""Input index of a Pad's axes."""


def explicit_axes(graph: Graph) -> bool:
    """Rewrite such a Pad or Resize with amounts for all axes; return whether there was any."""
    return any(n.op in CONVOLUTIONS for n in graph.nodes) and replace_each(graph, {ops.Pad: _pad, ops.Resize: _resize})


def names_some_axes(graph: Graph, node: Node) -> bool:
    """Return whether `node` has an axes list, so that no Transpose may be moved through it."""
    if node.domain or graph.opset < 18:
        return False
    if node.op == ops.Pad:
        return any(node.inputs[AXES:])
    nearest = node.op == ops.Resize and graph.attributes(node)["mode"] == b"nearest"
    return nearest and bool(integers(graph.attributes(node), "axes"))


def _pad(graph: Graph, node: Node) -> list[NodeProto] | None:
    """Pad(x, pads of axes) -> Pad(x, pads of all axes)"""
    rank = graph.type(node.inputs[0]).rank
    if not names_some_axes(graph, node) or rank is None:
        return None
    pads, result = node.inputs[1], node.outputs[0]
    axes = graph.constant(node.inputs[AXES])
    if axes is None:
        name, made = _scattered(graph, pads, node.inputs[AXES], rank, f"{result}.pads")
    else:
        places = (axes.reshape(-1) % rank).tolist()
        of_both_ends = [*places, *(rank + axis for axis in places)]
        name, made = _spread(graph, pads, of_both_ends, np.zeros(2 * rank, np.int64), f"{result}.pads")
    return [*made, _reading(node, {1: name, AXES: ""})]


def _resize(graph: Graph, node: Node) -> list[NodeProto] | None:
    """Resize(x, numbers of axes) -> Resize(x, numbers of all axes)"""
    attributes = graph.attributes(node)
    if graph.opset < 11 or attributes["mode"] != b"nearest":
        return None
    image, roi, scales, sizes = (*node.inputs, "", "", "")[:4]
    rank, result = graph.type(image).rank, node.outputs[0]
    crops = attributes["coordinate_transformation_mode"] == b"tf_crop_and_resize"
    if not names_some_axes(graph, node):
        unread = {1: "" if crops else roi, 2: scales if sizes else ""}
        empty = {n: v for n, v in unread.items() if v and not graph.is_constant(v)}
        # An unused operand may have any length, and ONNX Runtime would treat it as amounts of each axis, too.
        none = fresh_constant(graph, f"{result}.none", np.zeros(0, np.float32)) if empty else ""
        return [_reading(node, dict.fromkeys(empty, none))] if empty else None
    by_sizes = bool(sizes) and graph.element_count(sizes) != 0
    # The aspect-ratio policy picks one scale for the listed axes; without the list it would for all.
    chosen = by_sizes and attributes["keep_aspect_ratio_policy"] != b"stretch"
    if rank is None or chosen:
        return None
    axes = [axis % rank for axis in integers(attributes, "axes")]
    read = {1: "", 2: "", 3: ""}
    made: list[NodeProto] = []
    if crops:
        whole = np.repeat(np.array([0, 1], helper.tensor_dtype_to_np_dtype(graph.type(roi).dtype)), rank)
        read[1], made = _spread(graph, roi, [*axes, *(rank + axis for axis in axes)], whole, f"{result}.roi")
    if by_sizes:
        read[3], more = _with_extents(graph, sizes, axes, image, f"{result}.sizes")
    else:
        read[2], more = _spread(graph, scales, axes, np.ones(rank, np.float32), f"{result}.scales")
    new = _reading(node, read)
    del new.attribute[next(n for n, a in enumerate(new.attribute) if a.name == "axes")]
    return [*made, *more, new]


def _spread(
    graph: Graph, numbers: str, places: Sequence[int], others: np.ndarray, base: str
) -> tuple[str, list[NodeProto]]:
    """Return a vector with `numbers` at these indices and `others` elsewhere, and the nodes that compute it."""
    array = graph.constant(numbers)
    if array is not None:
        whole = others.astype(array.dtype)
        whole[list(places)] = array.reshape(-1)
        return fresh_constant(graph, base, whole), []
    return _picked(graph, numbers, fresh_constant(graph, f"{base}.others", others), places, len(others), base)


def _with_extents(graph: Graph, sizes: str, axes: Sequence[int], image: str, base: str) -> tuple[str, list[NodeProto]]:
    """Return sizes for all axes of an image, its own extents where `sizes` has none, and their nodes."""
    extents, known = graph.type(image).shape or (), graph.constant(sizes)
    others = [extent for axis, extent in enumerate(extents) if axis not in axes]
    if known is not None and all(isinstance(extent, int) for extent in others):
        return _spread(graph, sizes, axes, np.array([e if isinstance(e, int) else 0 for e in extents]), base)
    shape = _typed(graph, f"{base}.shape", TensorProto.INT64)
    name, made = _picked(graph, sizes, shape, axes, len(extents), base)
    return name, [helper.make_node(ops.Shape, [image], [shape]), *made]


def _picked(
    graph: Graph, numbers: str, others: str, places: Sequence[int], count: int, base: str
) -> tuple[str, list[NodeProto]]:
    """Return a vector of the given length with `numbers` at these indices and elements of `others` elsewhere."""
    both, name = (_typed(graph, n, graph.type(others).dtype) for n in (f"{base}.both", base))
    order = [places.index(n) if n in places else len(places) + n for n in range(count)]
    return name, [
        helper.make_node(ops.Concat, [numbers, others], [both], axis=0),
        helper.make_node(ops.Gather, [both, fresh_constant(graph, f"{base}.order", np.array(order))], [name], axis=0),
    ]


def _scattered(graph: Graph, pads: str, axes: str, rank: int, base: str) -> tuple[str, list[NodeProto]]:
    """Return pads of all axes, from pads for computed axes, and the nodes that compute them."""
    none = fresh_constant(graph, f"{base}.none", np.zeros(rank, np.int64))
    first, last, begins, ends, name = (
        _typed(graph, n, TensorProto.INT64)
        for n in (f"{base}.first", f"{base}.last", f"{base}.begins", f"{base}.ends", base)
    )
    return name, [
        helper.make_node(ops.Split, [pads], [first, last], axis=0, num_outputs=2),
        helper.make_node(ops.ScatterElements, [none, axes, first], [begins], axis=0),
        helper.make_node(ops.ScatterElements, [none, axes, last], [ends], axis=0),
        helper.make_node(ops.Concat, [begins, ends], [name], axis=0),
    ]


def _typed(graph: Graph, base: str, dtype: int) -> str:
    name = graph.fresh(base)
    graph.types[name] = ValueType(dtype, (None,))
    return name


def _reading(node: Node, values: dict[int, str]) -> NodeProto:
    """Return the node with other inputs at these positions; trailing empty inputs are dropped."""
    new = onnx.NodeProto()
    new.CopyFrom(node.proto)
    inputs = [*node.inputs, *[""] * (max(values) + 1 - len(node.inputs))]
    for position, value in values.items():
        inputs[position] = value
    while not inputs[-1]:
        inputs.pop()
    del new.input[:]
    new.input.extend(inputs)
    return new
