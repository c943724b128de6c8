"""Horizontal fusion of fused ops whose results are concatenated: one op, each part of which writes its own channels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnx import FunctionProto, NodeProto

from onnxfuse import cuda, ops
from onnxfuse.fusion.region.make_op import digest_of, op_name
from onnxfuse.fusion.steps.merge import facts, first_operators, formal_names, inner_values, merged_body, merged_node
from onnxfuse.fusion.steps.pointwise import convex
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN, FusedOp
from onnxfuse.support.plurals import plural

MOST_PARTS = 8
"""Maximum parts of one op, each a kernel with its own pointers among the arguments."""


def join(
    graph: Graph, node: Node, fused_ops: Mapping[str, FusedOp], rule: str, template: str
) -> tuple[FusedOp, Node, tuple[Node, ...]] | str | None:
    """Return one op that replaces a Concat and the producers of its inputs, with its node, and those nodes.

    Return None at another node, and the reason if they do not form one op. `fused_ops` are the fused ops so far.
    """
    if node.op != ops.Concat:
        return None
    found = _members(graph, node, fused_ops)
    if isinstance(found, str):
        return found
    members = tuple(sorted(found, key=lambda n: n.order))
    if not convex(graph, dict.fromkeys((*members, node))):
        return "a part depends on a node outside that depends on another part"
    inputs = graph.inputs_of([*members, node])
    inner = inner_values(members)
    formal = formal_names(inputs, node.outputs, inner)
    body = _merged(graph, members, node, formal, {m: fused_ops[m.op].body for m in members})
    library = None
    if any(fused_ops[m.op].library is not None for m in members):
        library = _merged(
            graph, members, node, formal, {m: fused_ops[m.op].library or fused_ops[m.op].body for m in members}
        )
        library.name = "library"
    types = tuple(graph.type(v).dtype for v in inputs)
    op = FusedOp("", rule, template, types, (graph.type(node.outputs[0]).dtype,), body, library)
    chain = (*first_operators(members[:1], {m: fused_ops[m.op].body for m in members}), f"Concat{len(members)}")
    op = replace(op, name=op_name(rule, chain, digest_of(body, library, op.template, op.inputs, op.outputs), fused_ops))
    body.name = op.name
    reason = cuda.supports(op)
    replaced = [*(name for m in members for name in facts(m, "nodes")), node.proto.name]
    made = merged_node(op, node.proto.name, inputs, node.outputs, replaced, inner)
    return reason if reason is not None else (op, made, members)


def joins_channels(graph: Graph, node: Node) -> bool:
    """Return whether a Concat concatenates the channels of channels-last images."""
    return graph.type(node.outputs[0]).rank == 4 and graph.attributes(node).get("axis") in (-1, 3)


def _members(graph: Graph, node: Node, fused_ops: Mapping[str, FusedOp]) -> list[Node] | str:
    """Return the nodes that compute inputs for the Concat alone, or why they form no op."""
    if not joins_channels(graph, node):
        return "no Concat of the channels of channels-last images"
    if not 2 <= len(set(node.inputs)) == len(node.inputs) <= MOST_PARTS:
        return f"{plural(node.inputs, 'value')} concatenated, expected 2 to {MOST_PARTS} different ones"
    for value in node.inputs:
        shape = graph.type(value).shape
        channels = None if shape is None else shape[-1]
        if not isinstance(channels, int) or channels % cuda.SLOT_CHANNELS:
            return f"'{value}' has {channels} channels, not a multiple of {cuda.SLOT_CHANNELS}"
        if graph.is_constant(value):
            return f"'{value}' is a constant"
    makers = [_maker(graph, value, fused_ops) for value in node.inputs]
    return [m for m in makers if m is not None] or "no value side by side is what a kernel computes for that alone"


def _maker(graph: Graph, value: str, fused_ops: Mapping[str, FusedOp]) -> Node | None:
    """Return the fused node that computes a value for a single reader, by a kernel with a free output location."""
    maker = graph.producer(value)
    if maker is None or maker.domain != DOMAIN or maker.op not in fused_ops or len(maker.outputs) != 1:
        return None
    alone = len(graph.readers(value)) == 1 and not graph.is_output(value)
    return maker if alone and cuda.TEMPLATES[fused_ops[maker.op].template].writes_slots else None


def _merged(
    graph: Graph, members: Sequence[Node], node: Node, formal: Mapping[str, str], bodies: Mapping[Node, FunctionProto]
) -> FunctionProto:
    """Return one function of all parts and the Concat."""
    made = merged_body(graph, members, formal, bodies)
    last = made.node.add()
    last.CopyFrom(NodeProto(op_type=ops.Concat, attribute=node.proto.attribute))
    last.input.extend(formal[v] for v in node.inputs)
    last.output.append(made.output[0])
    return made
