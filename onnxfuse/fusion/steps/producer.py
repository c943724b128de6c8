"""Vertical fusion of fused ops: an op that reads a value twice, first for its range, joins the op that computes it."""

from collections.abc import Mapping
from dataclasses import replace

from onnxfuse import cuda, ops
from onnxfuse.fusion.region.make_op import digest_of, op_name
from onnxfuse.fusion.steps.merge import facts, first_operators, formal_names, inner_values, merged_body, merged_node
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN, FusedOp


def join_producer(
    graph: Graph, node: Node, fused_ops: Mapping[str, FusedOp], rule: str, template: str
) -> tuple[FusedOp, Node, tuple[Node, ...]] | str | None:
    """Return one op that replaces a fused op and the one that computes its only input, with its node, and those nodes.

    All outputs of both stay. Return None if `template` merges no such op, and the reason if they do not form one.
    """
    if node.op == ops.DynamicQuantizeLinear and not node.domain:
        return f"'{node.inputs[0]}' is quantized by no kernel"
    if (
        node.domain != DOMAIN
        or node.op not in fused_ops
        or fused_ops[node.op].template != cuda.TEMPLATES[template].joins
    ):
        return None
    (value,) = node.inputs
    maker = graph.producer(value)
    if maker is None or maker.domain != DOMAIN or maker.op not in fused_ops:
        return f"'{value}' is not what a kernel computes"
    first = fused_ops[maker.op]
    if not cuda.TEMPLATES[first.template].leaves_extremes:
        return f"the kernel that computes '{value}' leaves no range of it"
    members, inputs, outputs = (maker, node), [*maker.inputs], [*maker.outputs, *node.outputs]
    inner = inner_values(members)
    formal = formal_names(inputs, outputs, inner)
    bodies = {m: fused_ops[m.op].body for m in members}
    body = merged_body(graph, members, formal, bodies)
    library = None
    if first.library is not None:
        library = merged_body(graph, members, formal, bodies | {maker: first.library})
        library.name = "library"
    types_in, types_out = (tuple(graph.type(v).dtype for v in values) for values in (inputs, outputs))
    op = FusedOp("", rule, template, types_in, types_out, body, library)
    digest = digest_of(body, library, template, types_in, types_out)
    op = replace(op, name=op_name(rule, first_operators(members, bodies), digest, fused_ops))
    body.name = op.name
    reason = cuda.supports(op)
    replaced = [name for m in members for name in facts(m, "nodes")]
    made = merged_node(op, node.proto.name, inputs, outputs, replaced, inner)
    return reason if reason is not None else (op, made, members)
