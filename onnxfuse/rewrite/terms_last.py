"""Weights of matrix products as a kernel wants them: a column's terms side by side, [n, k].

TF32 products of Hopper's tensor cores read both factors so; the weight is turned once, when the model is optimized.
"""

from collections.abc import Collection, Sequence

from onnx import NodeProto
from onnx.helper import make_attribute, make_node

from onnxfuse.model.graph import Graph, Node
from onnxfuse.model.types import ValueType


def with_terms_last(graph: Graph, nodes: Sequence[Node], types: Collection[int]) -> list[Node]:
    """Return `nodes` with the products of these element types on weights [n, k], where they are constants [k, n].

    The nodes that are new take the place of theirs in the graph; `graph.replace` with both lists undoes it.
    """
    # MatMul(x, w) -> MatMul(x, Transpose(v)), Gemm(x, w) -> Gemm <transB = 1> (x, v): v is w with its axes exchanged.
    found: list[Node] = []
    for node in nodes:
        turned = _turned(graph, node) if _wants(graph, node, types) else None
        if turned is not None:
            graph.replace([node], turned)
        found.extend([node] if turned is None else turned)
    return found


def _wants(graph: Graph, node: Node, types: Collection[int]) -> bool:
    if node.op not in ("MatMul", "Gemm") or node.domain or graph.type(node.inputs[0]).dtype not in types:
        return False
    weight = graph.type(node.inputs[1])
    standing = weight.shape is not None and len(weight.shape) == 2 and graph.is_constant(node.inputs[1])
    return standing and not graph.attributes(node).get("transB", 0)


def _turned(graph: Graph, node: Node) -> list[Node] | None:
    """Return what takes the node's place, None where the weight's numbers were left in their file."""
    weight = graph.constant(node.inputs[1])
    if weight is None:
        return None
    stored = f"{node.inputs[1]}.terms_last"
    if stored not in graph.initializers:
        graph.add_constant(stored, weight.T)
    product = NodeProto()
    product.CopyFrom(node.proto)
    if node.op == "Gemm":
        del product.attribute[:]
        product.attribute.extend(a for a in node.proto.attribute if a.name != "transB")
        product.attribute.append(make_attribute("transB", 1))
        product.input[1] = stored
        return [Node(product)]
    back = graph.fresh(f"{stored}.back")
    graph.types[back] = ValueType(graph.type(stored).dtype, weight.shape)
    product.input[1] = back
    return [Node(make_node("Transpose", [stored], [back], f"{node.proto.name}/terms_last", perm=[1, 0])), Node(product)]
