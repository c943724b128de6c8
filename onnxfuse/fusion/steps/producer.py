"""Vertical fusion of fused ops: an op joins the one that computes what it reads, for its range or before a product."""

from collections.abc import Mapping

from onnxfuse import cuda, ops
from onnxfuse.fusion.steps.merge import is_of, merged_op
from onnxfuse.fusion.steps.pointwise import convex
from onnxfuse.graph.constant_folding import is_product
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN, FusedOp


def join_producer(
    graph: Graph, node: Node, fused_ops: Mapping[str, FusedOp], rule: str, template: str
) -> tuple[FusedOp, Node, tuple[Node, ...]] | str | None:
    """Return one op that replaces a fused op and the one that computes an input of it, with its node, and those nodes.

    All outputs of both stay. Return None if `template` merges no such op, and the reason if they do not form one.
    """
    how = cuda.TEMPLATES[template]
    if how.of:
        maker = _maker_of(graph, node, fused_ops, how.joins, how.of)
    else:
        maker = _maker_of_range(graph, node, fused_ops, how.joins)
    if maker is None or isinstance(maker, str):
        return maker
    first = fused_ops[maker.op]
    members, outputs = (maker, node), [*maker.outputs, *node.outputs]
    inputs = [v for v in dict.fromkeys((*maker.inputs, *node.inputs)) if v not in maker.outputs]
    libraries = {} if first.library is None else {maker: first.library}
    return merged_op(graph, members, inputs, outputs, fused_ops, (rule, template), node.proto.name, libraries)


def _maker_of_range(graph: Graph, node: Node, fused_ops: Mapping[str, FusedOp], joins: str) -> Node | str | None:
    """Return the fused op that computes the only input of a node of template `joins`, and can leave its range."""
    if node.op == ops.DynamicQuantizeLinear and not node.domain:
        return f"'{node.inputs[0]}' is quantized by no kernel"
    if not is_of(node, fused_ops, joins):
        return None
    (value,) = node.inputs
    maker = graph.producer(value)
    if maker is None or maker.domain != DOMAIN or maker.op not in fused_ops:
        return f"'{value}' is not what a kernel computes"
    if not cuda.TEMPLATES[fused_ops[maker.op].template].leaves_extremes:
        return f"the kernel that computes '{value}' leaves no range of it"
    return maker


def _maker_of(graph: Graph, node: Node, fused_ops: Mapping[str, FusedOp], joins: str, of: str) -> Node | str | None:
    """Return the fused op of template `of` that computes an input of a node of template `joins`."""
    found = [m for v in node.inputs if (m := graph.producer(v)) is not None]
    makers = [m for m in found if is_of(m, fused_ops, of)]
    if is_product(node) and any(m in makers or (m.entry is not None and m.entry.rows is not None) for m in found):
        return f"'{node.outputs[0]}' is a product of no kernel"
    if not makers or not is_of(node, fused_ops, joins):
        return None
    return makers[0] if convex(graph, dict.fromkeys((makers[0], node))) else "what it computes is read on the way, too"
