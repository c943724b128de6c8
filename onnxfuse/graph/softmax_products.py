"""The two products around the Softmax of an attention."""

from onnxfuse import ops
from onnxfuse.graph.constant_folding import is_reshape
from onnxfuse.graph.graph import Graph, Node

RANK = 4
"""Rank of queries, keys and values: [batch, heads, sequence, size]."""


def score_product(graph: Graph, softmax: Node) -> Node | None:
    """Return the product before a Softmax, looking through a scale and an added mask, also of shifted windows."""
    path = score_path(graph, softmax)
    return path[-1] if path else None


def score_path(graph: Graph, softmax: Node) -> list[Node]:
    """Return the nodes before a Softmax up to the product of its scores, this one last; none if there is no product."""
    path = list[Node]()
    node = graph.producer(softmax.inputs[0])
    while node is not None and (_keeps_matrices(graph, node) or (node.is_elementwise and len(node.outputs) == 1)):
        path.append(node)
        before = [n for v in node.inputs if (n := graph.producer(v)) is not None and not graph.is_constant(v)]
        node = before[0] if len(before) == 1 else None
    return [*path, node] if node is not None and _is_product(node) else []


def result_product(graph: Graph, softmax: Node) -> Node | None:
    """Return the product of probabilities and values; over the last axis Softmax is the same at every opset."""
    axis = int(str(graph.attributes(softmax)["axis"]))
    node = graph.only_reader(softmax.outputs[0])
    product = node is not None and _is_product(node) and node.inputs[0] == softmax.outputs[0]
    return node if product and axis in (-1, RANK - 1) else None


def _keeps_matrices(graph: Graph, node: Node) -> bool:
    """Return whether a node reshapes the batch of scores [..., heads, queries, keys] alone."""
    if not is_reshape(node):
        return False
    before, after = (graph.type(v).shape or () for v in (node.inputs[0], node.outputs[0]))
    return len(before) > 2 and None not in before[-3:] and before[-3:] == after[-3:]


def _is_product(node: Node) -> bool:
    return node.op == ops.MatMul and not node.domain
