"""Write one head of keys and values that all queries read (multi-query attention) in the form of grouped queries.

Falcon, StarCoder, PaLM: queries have heads, keys and values have one, [batch, 1, sequence, size]. Exporters let the
products broadcast it, or repeat it by an Expand of the heads' axis. Grouped queries repeat heads on an axis of their
own, `Reshape(Expand(Unsqueeze(k)))`; the rule attention knows these nodes, and its kernel reads each head once.
"""

from collections.abc import Mapping

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.channels import order_of
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.graph.softmax_products import RANK, result_product, score_path
from onnxfuse.shapes.types import ValueType

ALIGNED: Mapping[int, int] = {TensorProto.FLOAT: 16, TensorProto.FLOAT16: 8, TensorProto.BFLOAT16: 8}
"""Divisor of the head sizes that the rule attention takes, by element type."""

MOST = 256
"""Maximum head size that it takes."""

SINCE = 13
"""First operator set whose Unsqueeze reads its axes as an input."""


@graph_pass
def repeat_shared_heads(graph: Graph) -> bool:
    """Writes the one head of multi-query attention as grouped queries repeat theirs, which a kernel reads once."""
    changed = False
    for softmax in [n for n in graph.nodes if n.op == ops.Softmax and not n.domain] if graph.opset >= SINCE else ():
        result, path = result_product(graph, softmax), score_path(graph, softmax)
        if result is None or not path or not all(_is_of_attention(graph, n) for n in path[:-1]):
            continue
        scores = path[-1]
        (queries, keys), values = scores.inputs, result.inputs[1]
        heads = _heads(graph, queries)
        if heads > 1 and _is_one_head(graph, keys, -2) and _is_one_head(graph, values, -1):
            _repeat(graph, scores, heads)
            _repeat(graph, result, heads)
            changed = True
    return changed


def _heads(graph: Graph, queries: str) -> int:
    """Return how many heads the queries have; 0 if attention takes none of their size, or the number is not known."""
    type_ = graph.type(queries)
    if type_.rank != RANK or type_.dtype not in ALIGNED:
        return 0
    _, heads, _, size = type_.shape or ()
    fits = isinstance(size, int) and size <= MOST and size % ALIGNED[type_.dtype] == 0
    return heads if isinstance(heads, int) and fits else 0


def _is_of_attention(graph: Graph, node: Node) -> bool:
    """Return whether a node scales, masks or biases scores: repeated heads of anything else would be written, as no
    kernel reads them."""
    scaled = node.op in (ops.Mul, ops.Div) and any(graph.element_count(v) == 1 for v in node.inputs)
    return not node.domain and (scaled or node.op in (ops.Add, ops.Where, ops.Reshape))


def _is_one_head(graph: Graph, value: str, axis: int) -> bool:
    """Return whether keys or values have one head, before or after an Expand repeats it and nothing else; `axis` is
    that of its size."""
    type_ = graph.type(value)
    expand = _expand(graph, value)
    sized = type_.rank == RANK and isinstance((type_.shape or ())[axis], int)
    heads, repeated = (
        graph.type(v).shape for v in ((value, value) if expand is None else (expand.inputs[0], expand.outputs[0]))
    )
    if not sized or heads is None or repeated is None or len(heads) != RANK:
        return False
    return heads[1] == 1 and all(heads[n] is not None and heads[n] == repeated[n] for n in (0, 2, 3))


def _path(graph: Graph, value: str) -> list[Node]:
    """Return the nodes before `value` that are a scale or transpose the matrix of a head, the last one first."""
    path = list[Node]()
    while (node := graph.producer(value)) is not None and not graph.is_output(value):
        scaled = node.is_elementwise and len(node.inputs) == 2 and graph.element_count(node.inputs[1]) == 1
        turned = node.op == ops.Transpose and order_of(graph, node) == [0, 1, 3, 2]
        if node.domain or not (scaled or turned):
            break
        path.append(node)
        value = node.inputs[0]
    return path


def _expand(graph: Graph, value: str) -> Node | None:
    """Return the Expand that repeats the head of `value`."""
    path = _path(graph, value)
    node = graph.producer(path[-1].inputs[0] if path else value)
    return node if node is not None and node.op == ops.Expand and not node.domain else None


def _repeat(graph: Graph, product: Node, heads: int) -> None:
    """Let a product read a head that is repeated on an axis of its own, before a scale and a Transpose of it."""
    right = product.inputs[1]
    path, expand = _path(graph, right), _expand(graph, right)
    few = expand.inputs[0] if expand is not None else path[-1].inputs[0] if path else right
    type_ = graph.type(few)
    batch, _, rows, size = type_.shape or ()
    to = Rewriter(graph, product)
    apart = to.add(
        ops.Unsqueeze, few, axes=[2], hint=f"{few}.apart", type_=ValueType(type_.dtype, (batch, 1, 1, rows, size))
    )
    group = to.add(
        ops.Expand,
        apart,
        shape=[1, 1, heads, 1, 1],
        hint=f"{few}.group",
        type_=ValueType(type_.dtype, (batch, 1, heads, rows, size)),
    )
    known = [0, heads, -1, size] if isinstance(size, int) else [0, heads, rows, -1]
    value = to.add(
        ops.Reshape, group, shape=known, hint=f"{few}.heads", type_=ValueType(type_.dtype, (batch, heads, rows, size))
    )
    for node in reversed(path):
        shape = graph.type(node.outputs[0]).shape or ()
        own = ValueType(type_.dtype, (shape[0], heads, *shape[2:]))
        value = to.copy(node, {0: value}, hint=f"{node.outputs[0]}.heads", type_=own)
    to.copy(product, {1: value})
    to.finish()
