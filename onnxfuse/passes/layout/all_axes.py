"""Make the axes of Pad and nearest Resize explicit for all dimensions, in graphs with convolutions.

From operator set 18 on both may list the axes that their amounts apply to. ONNX Runtime 1.31 moves Transposes, such as
those at the edges of channels-last regions, through them as if there were an amount for each axis: it then fails to
load or to run the model.
"""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.ops import Trait
from onnxfuse.passes.layout.writer import integers
from onnxfuse.shapes.types import ValueType

AXES = 3
"""Input index of a Pad's axes."""
INTEGERS = ValueType(TensorProto.INT64, (None,))


@graph_pass
def explicit_axes(graph: Graph) -> bool:
    """Gives Pad and nearest Resize numbers for all axes next to convolutions, so that ONNX Runtime moves
    Transposes through them.
    """
    return any(n.has(Trait.CONVOLUTION) for n in graph.nodes) and rewrite_each(
        graph, {ops.Pad: _pad, ops.Resize: _resize}
    )


def names_some_axes(graph: Graph, node: Node) -> bool:
    """Return whether `node` has an axes list, so that no Transpose may be moved through it."""
    if node.domain or graph.opset < 18:
        return False
    if node.op == ops.Pad:
        return any(node.inputs[AXES:])
    nearest = node.op == ops.Resize and graph.attributes(node)["mode"] == b"nearest"
    return nearest and bool(integers(graph.attributes(node), "axes"))


def _pad(node: Node, to: Rewriter) -> bool:
    """Pad(x, pads of axes) -> Pad(x, pads of all axes)"""
    graph, rank = to.graph, to.graph.type(node.inputs[0]).rank
    if not names_some_axes(graph, node) or rank is None:
        return False
    pads, result = node.inputs[1], node.outputs[0]
    axes = graph.constant(node.inputs[AXES])
    if axes is None:
        name = _scattered(to, pads, node.inputs[AXES], rank, f"{result}.pads")
    else:
        positions = (axes.reshape(-1) % rank).tolist()
        of_both_ends = [*positions, *(rank + axis for axis in positions)]
        name = _placed(to, pads, of_both_ends, np.zeros(2 * rank, np.int64), f"{result}.pads")
    to.copy(node, {1: name, AXES: ""})
    return True


def _resize(node: Node, to: Rewriter) -> bool:
    """Resize(x, numbers of axes) -> Resize(x, numbers of all axes)"""
    graph, attributes = to.graph, to.graph.attributes(node)
    if graph.opset < 11 or attributes["mode"] != b"nearest":
        return False
    image, roi, scales, sizes = (*node.inputs, "", "", "")[:4]
    rank, result = graph.type(image).rank, node.outputs[0]
    crops = attributes["coordinate_transformation_mode"] == b"tf_crop_and_resize"
    if not names_some_axes(graph, node):
        unread = {1: "" if crops else roi, 2: scales if sizes else ""}
        empty = {n: v for n, v in unread.items() if v and not graph.is_constant(v)}
        # An unused operand may have any length, and ONNX Runtime would treat it as amounts of each axis, too.
        if empty:
            to.copy(node, dict.fromkeys(empty, to.constant(f"{result}.none", np.zeros(0, np.float32))))
        return bool(empty)
    by_sizes = bool(sizes) and graph.element_count(sizes) != 0
    # The aspect-ratio policy picks one scale for the listed axes; without the list it would for all.
    chosen = by_sizes and attributes["keep_aspect_ratio_policy"] != b"stretch"
    if rank is None or chosen:
        return False
    axes = [axis % rank for axis in integers(attributes, "axes")]
    read = {1: "", 2: "", 3: ""}
    if crops:
        whole = np.repeat(np.array([0, 1], helper.tensor_dtype_to_np_dtype(graph.type(roi).dtype)), rank)
        read[1] = _placed(to, roi, [*axes, *(rank + axis for axis in axes)], whole, f"{result}.roi")
    if by_sizes:
        read[3] = _with_extents(to, sizes, axes, image, f"{result}.sizes")
    else:
        read[2] = _placed(to, scales, axes, np.ones(rank, np.float32), f"{result}.scales")
    to.copy(node, read, axes=None)
    return True


def _placed(to: Rewriter, numbers: str, positions: Sequence[int], others: np.ndarray, hint: str) -> str:
    """Return a vector with `numbers` at these indices and `others` elsewhere."""
    array = to.graph.constant(numbers)
    if array is not None:
        whole = others.astype(array.dtype)
        whole[list(positions)] = array.reshape(-1)
        return to.constant(hint, whole)
    return _picked(to, numbers, to.constant(f"{hint}.others", others), positions, len(others), hint)


def _with_extents(to: Rewriter, sizes: str, axes: Sequence[int], image: str, hint: str) -> str:
    """Return sizes for all axes of an image, its own extents where `sizes` has none."""
    extents, constant = to.graph.type(image).shape or (), to.graph.constant(sizes)
    others = [extent for axis, extent in enumerate(extents) if axis not in axes]
    if constant is not None and all(isinstance(extent, int) for extent in others):
        return _placed(to, sizes, axes, np.array([e if isinstance(e, int) else 0 for e in extents]), hint)
    shape = to.add(ops.Shape, image, hint=f"{hint}.shape", type_=INTEGERS)
    return _picked(to, sizes, shape, axes, len(extents), hint)


def _picked(to: Rewriter, numbers: str, others: str, positions: Sequence[int], count: int, hint: str) -> str:
    """Return a vector of the given length with `numbers` at these indices and elements of `others` elsewhere."""
    type_ = ValueType(to.graph.type(others).dtype, (None,))
    both = to.add(ops.Concat, numbers, others, axis=0, hint=f"{hint}.both", type_=type_)
    order = [positions.index(n) if n in positions else len(positions) + n for n in range(count)]
    return to.add(ops.Gather, both, indices=order, axis=0, hint=hint, type_=type_)


def _scattered(to: Rewriter, pads: str, axes: str, rank: int, hint: str) -> str:
    """Return pads of all axes, from pads for computed axes."""
    none = to.constant(f"{hint}.none", [0] * rank)
    halves = [to.value(f"{hint}.{half}", INTEGERS) for half in ("first", "last")]
    to.add(ops.Split, pads, axis=0, num_outputs=2, output=halves)
    ends = [
        to.add(ops.ScatterElements, none, axes, half, axis=0, hint=f"{half}.all", type_=INTEGERS) for half in halves
    ]
    return to.add(ops.Concat, *ends, axis=0, hint=hint, type_=INTEGERS)
