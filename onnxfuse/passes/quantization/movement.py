"""Move quantized values rather than what they dequantize to: a quarter of the bytes, and no kernel between.

What copies elements into other places copies the integers as well as the numbers; a largest element is the largest
integer where the scale is positive. The DequantizeLinear then stands behind, with the readers of the result.
"""

from onnxfuse import ops
from onnxfuse.graph.channels import order_of
from onnxfuse.graph.float8 import FLOAT8
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.model import schema
from onnxfuse.ops import Trait
from onnxfuse.passes.quantization.weights import dequantizing
from onnxfuse.shapes.types import ValueType


@graph_pass
def move_quantized(graph: Graph) -> bool:
    """Moves DequantizeLinear after nodes that only move or select elements: Reshape, Transpose, Gather, MaxPool, ..."""
    changed = False
    for node in list(graph.nodes):
        if node.order >= 0 and _keeps_numbers(graph, node):
            changed |= _swap(graph, node)
    return changed


def _keeps_numbers(graph: Graph, node: Node) -> bool:
    """Return whether each element of the outputs is one of the first input's, or the largest of some."""
    if node.domain or node.captures or not all(node.outputs):
        return False
    if node.op == ops.MaxPool:
        return len(node.outputs) == 1
    moves = node.has(Trait.CARRIES) and not node.has(Trait.HAS_BODY) and not node.is_elementwise
    return moves and list(node.data) == [0] and all(graph.type(v).dtype for v in node.outputs)


def _swap(graph: Graph, node: Node) -> bool:
    chain = dequantizing(graph, node.inputs[0])
    if not chain:
        return False
    before = chain[0]
    dtype = graph.type(before.inputs[0]).dtype
    # ONNX Runtime has no kernels that move float8; a constant is transposed here.
    eight = dtype in FLOAT8
    constant = graph.constant(before.inputs[0]) if eight and node.op == ops.Transpose else None
    if constant is None and ((eight and not node.has(Trait.VIEW)) or not schema.takes(node.op, graph.opset, 0, dtype)):
        return False
    axis = before.written.get("axis")
    if isinstance(axis, int):
        order = order_of(graph, node) if node.op == ops.Transpose and "block_size" not in before.written else None
        if order is None or axis not in order:
            return False
        axis = order.index(axis)
    elif node.op == ops.MaxPool and not _is_positive(graph, before.inputs[1]):
        return False
    to = Rewriter(graph, node)
    moved = [to.value(f"{o}.quantized", ValueType(dtype, graph.type(o).shape)) for o in node.outputs]
    if constant is None:
        to.copy(node, {0: before.inputs[0]}, output=moved)
    else:
        graph.add_constant(moved[0], constant.transpose(order_of(graph, node)))
    for value, output in zip(moved, node.outputs, strict=True):
        name = f"{before.name} behind {node.name}"
        if len(chain) == 1:
            to.copy(before, {0: value}, output=output, name=name, axis=axis)
            continue
        wide = ValueType(graph.type(before.outputs[0]).dtype, graph.type(output).shape)
        number = to.copy(before, {0: value}, hint=f"{output}.wide", type_=wide, name=name, axis=axis)
        to.copy(chain[1], {0: number}, output=output, name=f"{chain[1].name} behind {node.name}")
    to.finish()
    return True


def _is_positive(graph: Graph, scale: str) -> bool:
    array = graph.constant(scale)
    return array is not None and bool((array > 0).all())
