"""The normal form of QuantizeLinear and DequantizeLinear, whatever tool wrote them.

- ONNX tells one scale from one for each index of an axis by the scale's shape. Here a node that is known to have one
  scale, which computes elementwise, has a scalar for it and neither `axis` nor `block_size`; any other node has the
  axis, counted from the front.
- A zero point of zeros is left out of a DequantizeLinear; `written_zero_points` writes it for the file.
- A vector of constants, such as a bias, is dequantized: the numbers are as few.
"""

import math

import numpy as np

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.passes.quantization.weights import DEFAULT_AXIS, dequantized

SINCE_AXIS = 13
"""Operator set from which on scales may lie along an axis."""


@graph_pass
def quantization_scales(graph: Graph) -> bool:
    """Writes quantization in one form: scalar scales without an axis, the axis of others, no zero point of zero."""
    return rewrite_each(graph, {ops.QuantizeLinear: _explicit, ops.DequantizeLinear: _explicit})


def _explicit(node: Node, to: Rewriter) -> bool:
    """Write one scale as a scalar without an axis, the axis of several, and a vector of constants as what it is."""
    graph, read = to.graph, dict[int, str]()
    value = node.outputs[0]
    if node.op == ops.DequantizeLinear and graph.type(node.inputs[0]).rank == 1 and not graph.is_output(value):
        array = dequantized(graph, node)
        if array is not None:
            to.replace(value, to.constant(value, array))
            return True
    one = _has_one_scale(graph, node)
    if one:
        scalars = [(i, v) for i, v in enumerate(node.inputs[1:], 1) if v and graph.type(v).rank != 0]
        for i, several in scalars:
            if (array := graph.constant(several)) is not None:
                read[i] = to.constant(f"{several}.scalar", array.reshape(()))
    if node.op == ops.DequantizeLinear and len(node.inputs) > 2 and _is_zero(graph, node.inputs[2]):
        read[2] = ""
    axis, block = (None, None) if one else (_axis(graph, node), node.written.get("block_size"))
    if not read and node.written.get("axis") == axis and node.written.get("block_size") == block:
        return False
    to.copy(node, read, axis=axis, block_size=block)
    return True


def _has_one_scale(graph: Graph, node: Node) -> bool:
    """Return whether a node is known to have one scale; one of a single block must be a constant to become a scalar."""
    shape = graph.type(node.inputs[1]).static_shape
    if shape is None or math.prod(shape) != 1:
        return False
    return len(shape) < 2 or all(graph.is_constant(v) for v in node.inputs[1:] if v)


def _axis(graph: Graph, node: Node) -> int | None:
    """Return the axis along which the scales of a node lie, counted from the front where its rank is known."""
    if graph.opset < SINCE_AXIS:
        return None
    written, rank = node.written.get("axis", DEFAULT_AXIS), graph.type(node.inputs[0]).rank
    assert isinstance(written, int)
    return written + rank if written < 0 and rank is not None else written


def _is_zero(graph: Graph, value: str) -> bool:
    array = graph.constant(value) if value else None
    return array is not None and not np.any(array)
