"""What merging fused ops into one has in common: one body of all of theirs, and one node with all of their metadata."""

import json
from collections.abc import Iterable, Mapping, Sequence

from onnx import FunctionProto, NodeProto

from onnxfuse import cuda, ops
from onnxfuse.fusion.region.make_op import digest_of, op_name
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import provenance
from onnxfuse.model.fused import DOMAIN, FusedOp


def inner_values(members: Iterable[Node]) -> list[str]:
    """Return the model's names of what fused nodes compute inside, and of their outputs."""
    return [v for m in members for v in (*facts(m, "values"), *m.outputs)]


def formal_names(inputs: Sequence[str], outputs: Sequence[str], inner: Sequence[str]) -> dict[str, str]:
    """Return names in a body by those in the model."""
    formal = {value: f"x{i}" for i, value in enumerate(inputs)} | {value: f"y{i}" for i, value in enumerate(outputs)}
    return formal | {value: f"v{i}" for i, value in enumerate(inner) if value not in formal}


def merged_body(
    graph: Graph, members: Sequence[Node], formal: Mapping[str, str], bodies: Mapping[Node, FunctionProto]
) -> FunctionProto:
    """Return one function with the nodes of all members; interior values of library forms are suffixed with the
    member's index."""
    made = FunctionProto(domain=DOMAIN)
    made.input.extend(f for f in formal.values() if f.startswith("x"))
    made.output.extend(f for f in formal.values() if f.startswith("y"))
    versions = {"": graph.opset}
    for number, member in enumerate(members):
        body = bodies[member]
        actual = {f"v{i}": name for i, name in enumerate(facts(member, "values"))}
        actual |= dict(zip((*body.input, *body.output), (*member.inputs, *member.outputs), strict=True))
        for inner in body.node:
            copy = made.node.add()
            copy.CopyFrom(inner)
            for values, given in ((copy.input, inner.input), (copy.output, inner.output)):
                del values[:]
                values.extend(v and (formal[actual[v]] if v in actual else f"p{number}_{v}") for v in given)
            if any(copy.output[0] in n.output for n in made.node[:-1]):  # a constant shared by several members
                del made.node[-1]
        versions.update({o.domain: max(o.version, versions.get(o.domain, 0)) for o in body.opset_import})
    for domain in sorted(versions):
        made.opset_import.add(domain=domain, version=versions[domain])
    return made


def merged_op(
    graph: Graph,
    members: tuple[Node, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    fused_ops: Mapping[str, FusedOp],
    made_by: tuple[str, str],
    name: str,
    libraries: Mapping[Node, FunctionProto],
) -> tuple[FusedOp, Node, tuple[Node, ...]] | str:
    """Return one op of all that its members compute, its node called `name`, and the members; the reason if it has no
    kernel.

    `made_by` is its rule and its template. `libraries` are the library forms of members that have one: if there are
    any, the op has one too.
    """
    rule, template = made_by
    inner = inner_values(members)
    formal = formal_names(inputs, outputs, inner)
    bodies = {m: fused_ops[m.op].body for m in members}
    body, library = merged_body(graph, members, formal, bodies), None
    if libraries:
        library = merged_body(graph, members, formal, {**bodies, **libraries})
        library.name = "library"
    types_in, types_out = (tuple(graph.type(v).dtype for v in values) for values in (inputs, outputs))
    digest = digest_of(body, library, template, types_in, types_out)
    body.name = op_name(rule, first_operators(members, bodies), digest, fused_ops)
    op = FusedOp(body.name, rule, template, types_in, types_out, body, library)
    reason = cuda.supports(op)
    if reason is not None:
        return reason
    replaced = [replaced for m in members for replaced in facts(m, "nodes")]
    return op, merged_node(op, name, inputs, outputs, replaced, inner), members


def merged_node(
    op: FusedOp, name: str, inputs: Sequence[str], outputs: Sequence[str], replaced: Sequence[str], inner: Sequence[str]
) -> Node:
    """Return the node of a merged op."""
    proto = NodeProto(op_type=op.name, domain=DOMAIN, name=name)
    proto.input.extend(inputs)
    proto.output.extend(outputs)
    for key, value in (("rule", op.rule), ("nodes", json.dumps([*replaced])), ("values", json.dumps([*inner]))):
        proto.metadata_props.add(key=f"{DOMAIN}.{key}", value=value)
    return Node(proto)


def first_operators(members: Iterable[Node], bodies: Mapping[Node, FunctionProto]) -> list[str]:
    """Return what names a merged op: the first operator of each member that computes something, or Transpose."""
    silent = (ops.Transpose, ops.Constant)
    return [next((n.op_type for n in bodies[m].node if n.op_type not in silent), str(ops.Transpose)) for m in members]


def facts(member: Node, key: str) -> list[str]:
    """Return a fused node's metadata: the original nodes' names, or those of interior values."""
    return provenance.names(member.proto, key) or []


def is_of(node: Node, fused_ops: Mapping[str, FusedOp], template: str) -> bool:
    """Return whether a node is a fused op of a template."""
    return node.domain == DOMAIN and node.op in fused_ops and fused_ops[node.op].template == template
