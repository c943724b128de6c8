"""Horizontal fusion of two fused ops that read the same value: RoPE of queries and of keys in one launch."""

from collections.abc import Mapping

from onnxfuse import cuda
from onnxfuse.fusion.steps.merge import is_of, merged_op
from onnxfuse.fusion.steps.pointwise import convex
from onnxfuse.fusion.steps.twins import CROWD, NEAREST
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import FusedOp


def join_parallel(
    graph: Graph, node: Node, fused_ops: Mapping[str, FusedOp], rule: str, template: str
) -> tuple[FusedOp, Node, tuple[Node, ...]] | str | None:
    """Return one op that replaces a fused op and the nearest later one with a common input, with its node, and those
    nodes.

    Neither depends on the other one. Return None if there are no such nodes of the templates that `template` merges,
    and the reason if they do not form one.
    """
    how = cuda.TEMPLATES[template]
    if _moves_alone(node) and any(_moves_alone(r) for v in node.inputs for r in graph.readers(v) if r is not node):
        return f"'{node.outputs[0]}' is moved by no kernel"
    other = _partner(graph, node, fused_ops, how.of) if _is_of(node, fused_ops, how.joins) else None
    if other is None:
        return None
    members = (node, other)
    inputs, outputs = graph.inputs_of(members), [*node.outputs, *other.outputs]
    return merged_op(graph, members, inputs, outputs, fused_ops, (rule, template), node.proto.name, {})


def _partner(graph: Graph, node: Node, fused_ops: Mapping[str, FusedOp], template: str) -> Node | None:
    """Return the nearest later node of a template that reads a computed value that `node` reads, and not its result."""
    shared = [v for v in node.inputs if v and not graph.is_constant(v) and len(graph.readers(v)) <= CROWD]
    later = {r for v in shared for r in graph.readers(v) if r.order > node.order and _is_of(r, fused_ops, template)}
    nearest = sorted(later, key=lambda n: n.order)[:NEAREST]
    apart = (n for n in nearest if set(node.outputs).isdisjoint(n.reads))
    return next((n for n in apart if convex(graph, dict.fromkeys((node, n)))), None)


def _moves_alone(node: Node) -> bool:
    """Return whether a node moves data, and is part of no kernel."""
    return cuda.is_movement(node.op, node.domain) and not cuda.is_free(node.op, node.domain)


def _is_of(node: Node, fused_ops: Mapping[str, FusedOp], template: str) -> bool:
    """Return whether a node is a fused op of a template with a single result and no form through the library."""
    return is_of(node, fused_ops, template) and len(node.outputs) == 1 and fused_ops[node.op].library is None
