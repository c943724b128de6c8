"""Write the one key and value of multi-query attention as repeated heads, the form that rules match.

Falcon, and every model with one key for all queries: the product broadcasts them. Repeated as in grouped-query
attention they are still read once: kernels of attention read the head before it is repeated.
"""

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.graph.softmax_products import RANK, result_product, score_product
from onnxfuse.passes.alignment.pad_heads import ALIGNED
from onnxfuse.shapes.types import ValueType

SINCE = 13
"""First operator set in which Unsqueeze reads its axes as an input."""

HEADS = 1
"""Axis of the heads."""

WIDEST = 256
"""Elements of a head up to which kernels of attention take it."""


@graph_pass
def repeated_heads(graph: Graph) -> bool:
    """Repeats the one key and value of multi-query attention for each head of queries, as attention kernels know it."""
    changed = False
    for softmax in [n for n in graph.nodes if n.op == ops.Softmax and not n.domain and graph.opset >= SINCE]:
        changed = _repeat(graph, softmax) or changed
    return changed


def _repeat(graph: Graph, softmax: Node) -> bool:
    scores, result = score_product(graph, softmax), result_product(graph, softmax)
    if scores is None or result is None:
        return False
    queries, values = scores.inputs[0], result.inputs[1]
    turned = _transpose_of(graph, scores.inputs[1])
    if turned is None:
        return False
    keys, swap = turned
    shapes = [graph.type(v).shape or () for v in (queries, keys, values)]
    if any(len(s) != RANK or not isinstance(s[HEADS], int) for s in shapes):
        return False
    many, *few = (s[HEADS] for s in shapes)
    size, aligned = shapes[0][-1], ALIGNED.get(graph.type(queries).dtype)
    fits = isinstance(size, int) and aligned is not None and size % aligned == 0 and size <= WIDEST
    if not isinstance(many, int) or many == 1 or few != [1, 1] or not fits or shapes[2][-1] != size:
        return False
    _insert(graph, swap, keys, many)
    _insert(graph, result, values, many)
    for node in _between(graph, scores.inputs[1]):
        shape = graph.type(node.outputs[0]).shape or ()
        graph.types[node.outputs[0]] = ValueType(graph.type(node.outputs[0]).dtype, (shape[0], many, *shape[2:]))
    return True


def _transpose_of(graph: Graph, value: str) -> tuple[str, Node] | None:
    """Return the keys [batch, heads, keys, size] and the node that transposes them for their product alone."""
    nodes = _between(graph, value)
    swap = nodes[-1] if nodes else None
    if swap is None or swap.op != ops.Transpose or graph.attributes(swap).get("perm") != [0, 1, 3, 2]:
        return None
    return (swap.inputs[0], swap) if all(graph.only_reader(n.outputs[0]) is not None for n in nodes) else None


def _between(graph: Graph, value: str) -> list[Node]:
    """Return the nodes from the one that makes `value` back to the first that is not elementwise with a number."""
    nodes = list[Node]()
    node = graph.producer(value)
    while node is not None and not node.domain:
        nodes.append(node)
        read = [v for v in node.inputs if graph.element_count(v) != 1]
        if not node.is_elementwise or len(read) != 1:
            return nodes
        node = graph.producer(read[0])
    return nodes


def _insert(graph: Graph, reader: Node, value: str, heads: int) -> None:
    """reader(value) -> reader(Reshape(Expand(Unsqueeze(value))))"""
    to, type_ = Rewriter(graph, reader), graph.type(value)
    batch, _, *rest = type_.shape or ()
    apart = to.add(
        ops.Unsqueeze, value, axes=[2], hint=f"{value}.apart", type_=ValueType(type_.dtype, (batch, 1, 1, *rest))
    )
    group = to.add(
        ops.Expand, apart, shape=[1, 1, heads, 1, 1], hint=f"{value}.group",
        type_=ValueType(type_.dtype, (batch, 1, heads, *rest)),
    )  # fmt: skip
    many = to.add(
        ops.Reshape, group, shape=[0, heads, -1, rest[-1]], hint=f"{value}.repeated",
        type_=ValueType(type_.dtype, (batch, heads, *rest)),
    )  # fmt: skip
    at = list(reader.inputs).index(value)
    to.copy(reader, {at: many})
    to.finish()
