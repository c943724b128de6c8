"""Build a fused op from a region: its nodes become the body of a model-local function."""

import hashlib
import json
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import onnx
from onnx import FunctionProto, NodeProto, TensorProto

from onnxfuse import cuda, ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import schema
from onnxfuse.model.bodies import overfull
from onnxfuse.model.fused import DOMAIN, FusedOp
from onnxfuse.rules.match.match import Match
from onnxfuse.rules.match.replace import node_proto, not_in_opset
from onnxfuse.rules.pattern.pattern import Pattern

STRUCTURAL_LIMIT = 8
"""Elements. Integer constants up to this size that are not arithmetic operands (axes, the target of a Reshape) are part
of the body.
"""

PLACES_LIMIT = 4096
"""Maximum elements of a constant that addresses data: the indices of a Gather."""

NAMED_OPS = 3
"""Maximum length of an operator chain that is spelled out in a fused op's name, after its rule's."""


LIBRARY_VERSIONS = {"com.ms.internal.nhwc": 17}
"""Versions of library domains other than 1: that of channels-last ops follows ONNX, up to 17."""


WHOLE = 9
"""First operator set with integer Constants."""
FLOATS = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)


@dataclass(frozen=True)
class Realization:
    """The library form of an anchor, and the match that binds its names and labels."""

    pattern: Pattern
    match: Match


@dataclass(frozen=True)
class Named:
    """A fused op, equal to any other of its name, which contains a hash of its contents."""

    name: str
    op: FusedOp = field(compare=False)


Made = dict[Hashable, FusedOp | str]
"""Ops, or why there is none, by what their regions are but for names."""


@lru_cache(maxsize=4096)
def _unsupported(named: Named) -> str | None:
    """Return why no kernel can be generated for an op; equal layers of a model are checked once."""
    return cuda.supports(named.op)


def make_op(
    graph: Graph,
    nodes: Sequence[Node],
    rule: str,
    template: str,
    realization: Realization | None = None,
    known: Collection[str] = (),
    made: Made | None = None,
    *,
    replaced: Collection[Node] = (),
) -> tuple[FusedOp, Node] | str:
    """Return the fused op for `nodes` (a convex region, in topological order) and the node that replaces them.

    Values read outside become outputs, so none is lost; an op equal to one of `known` shares its name. Return the
    reason if no kernel can be generated. What an equal region became is looked up in `made`, and added to it. Where
    some of `nodes` do not stand in the graph, `replaced` are those of it that they do the work of.
    """
    region = _Region(graph, nodes, replaced)
    key = None if made is None else _key(region, rule, template, realization)
    op = None if made is None or key is None else made.get(key)
    # The first op of a digest names all others: it is known, or the name is chosen anew.
    if op is None or (not isinstance(op, str) and op.name not in known):
        op = _op(region, rule, template, realization, known)
        if made is not None and key is not None:
            made[key] = op
    return op if isinstance(op, str) else (op, _node(op, region))


class _Region:
    """Nodes that become an op, and the values that they read and compute."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], replaced: Collection[Node] = ()) -> None:
        self.graph = graph
        self.nodes = nodes
        read, self.outputs = graph.inputs_of(nodes), graph.outputs_of(nodes, replaced)
        self.literals = [v for v in read if _is_literal(graph, v, nodes)]
        self.inputs = [v for v in read if v not in self.literals]
        self.inner = [o for n in nodes for o in n.outputs if o and o not in self.outputs]
        """Values that are neither read outside nor outputs of the graph."""


def _op(
    region: _Region, rule: str, template: str, realization: Realization | None, known: Collection[str]
) -> FusedOp | str:
    """Return the op of a region, or the reason if there is none."""
    graph, nodes, inputs, outputs = region.graph, region.nodes, region.inputs, region.outputs
    # ONNX Runtime 1.31.1 crashes on a function with an operator of the default domain that this opset does not have,
    # such as LayerNormalization before 17, although it accepts it as a node (2026-11).
    foreign = next((n for n in nodes if not n.domain and schema.find(n.op, "", graph.opset) is None), None)
    if foreign is not None:
        return f"{foreign.op} is not in ONNX's opset {graph.opset}: ONNX Runtime knows it as a node, not in a function"
    # ONNX Runtime may still run it as a node; ONNX's checker rejects a function that contains it.
    withdrawn = next((n for n in nodes if schema.is_deprecated(n.op, n.domain, graph.opset)), None)
    if withdrawn is not None:
        return f"{withdrawn.op} is deprecated in ONNX's opset {graph.opset}: it may be a node, not part of a function"
    whole = next((v for v in region.literals if graph.opset < WHOLE and graph.type(v).dtype not in FLOATS), None)
    if whole is not None:
        return f"'{whole}' is no Constant of ONNX's opset {graph.opset}, which are floating point numbers alone"
    formal = {v: f"x{i}" for i, v in enumerate(inputs)}
    formal.update({v: f"y{i}" for i, v in enumerate(outputs)})
    formal.update({v: f"v{i}" for i, v in enumerate([*region.literals, *region.inner])})
    body = FunctionProto(domain=DOMAIN)
    body.input.extend(formal[v] for v in inputs)
    body.output.extend(formal[v] for v in outputs)
    body.node.extend(_literal(graph, v, formal[v]) for v in region.literals)
    body.node.extend(_renamed(n.proto, formal) for n in nodes)
    body.opset_import.add(domain="", version=graph.opset)
    if any(n.domain == "com.microsoft" for n in nodes):
        body.opset_import.add(domain="com.microsoft", version=1)
    types_in = tuple(graph.type(v).dtype for v in inputs)
    types_out = tuple(graph.type(v).dtype for v in outputs)
    if 0 in (*types_in, *types_out):
        unknown = next(v for v in (*inputs, *outputs) if not graph.type(v).dtype)
        return f"the element type of '{unknown}' is not known"
    library = None if realization is None else library_form(body, [realization], formal, graph.opset)
    if isinstance(library, str):
        return library
    if (reason := overfull(body)) is not None:
        return reason
    digest = digest_of(body, library, template, types_in, types_out)
    body.name = op_name(rule, [n.op for n in nodes], digest, known)
    op = FusedOp(body.name, rule, template, types_in, types_out, body, library)
    reason = _unsupported(Named(op.name, op)) if library is None or cuda.is_template(template) else None
    return op if reason is None else reason


def library_form(
    body: FunctionProto, realizations: Sequence[Realization], formal: Mapping[str, str], opset: int
) -> FunctionProto | str:
    """Return the function that computes `body` on the same inputs with its anchors as library ops.

    `formal` maps the matches' values to their names in the body. Nodes grown around the anchors follow unchanged.
    Return the reason if the model's operator set cannot express it, or if a value of the body is lost.
    """
    last, inside = dict[str, list[NodeProto]](), set[str]()
    for number, found in enumerate(realizations):
        pattern, match = found.pattern, found.match
        reason = next((r for n in pattern.nodes if (r := not_in_opset(n, opset)) is not None), None)
        if reason is not None:
            return reason
        ends = {*pattern.inputs, *pattern.outputs}
        names = {name: formal[value] for name, value in match.values.items() if name in ends and isinstance(value, str)}
        names.update({v: f"inner{number or ''}_{v}" for v in pattern.values if v not in ends})
        names.update({v: "" for v in pattern.inputs if v not in match.values})  # absent in every spelling: omitted
        inside |= {formal[o] for n in match.nodes.values() for o in n.outputs if o in formal}
        root = formal[match.nodes[match.pattern.root].outputs[0]]
        last[root] = [node_proto(n, names, match) for n in pattern.nodes]
    nodes = list[NodeProto]()
    for node in (n for n in body.node if n.op_type != ops.Constant):
        nodes += next((last[o] for o in node.output if o in last), [] if inside & set(node.output) else [node])
    read = {v for n in nodes for v in n.input}
    constants = [n for n in body.node if n.op_type == ops.Constant and n.output[0] in read]
    computed = {o for n in (*constants, *nodes) for o in n.output} | set(body.input)
    lost = next((v for v in (*body.output, *sorted(read)) if v and v not in computed), None)
    if lost is not None:
        return f"the library's form does not compute '{lost}'"
    library = FunctionProto(domain=DOMAIN, name="library", input=body.input, output=body.output)
    library.node.extend((*constants, *nodes))
    library.opset_import.add(domain="", version=opset)
    for domain in sorted({n.domain for n in nodes if n.domain}):
        library.opset_import.add(domain=domain, version=LIBRARY_VERSIONS.get(domain, 1))
    return library


def outline(graph: Graph, nodes: Sequence[Node]) -> Hashable | None:
    """Return a key of a region, equal for regions that differ only in names: both have a kernel, or neither has.

    Return None where the reason may contain a value's name.
    """
    return _outline(_Region(graph, nodes), {})


def _outline(region: _Region, number: dict[str, int]) -> Hashable | None:
    """Return the outline of a region, and add its values to `number`, in the order in which they are met."""
    graph = region.graph
    rows = [(n.signature, tuple([number.setdefault(v, len(number)) for v in (*n.inputs, *n.outputs)]))
            for n in region.nodes]  # fmt: skip
    types = tuple([graph.type(v) for v in number if v])
    if graph.opset < WHOLE or not all(t.dtype for t in types):
        return None
    literals = tuple([(number[v], _stored(graph, v)) for v in region.literals if v in number])
    constants = tuple([number[v] for v in region.inputs if v in number and graph.is_constant(v)])
    return tuple(rows), types, number.get(""), literals, constants, tuple([number[v] for v in region.outputs])


def _key(region: _Region, rule: str, template: str, realization: Realization | None) -> Hashable | None:
    """Return all that an op depends on but for the names of its values; None if that is not known."""
    number = dict[str, int]()
    own = _outline(region, number)
    if own is None or realization is None:
        return None if own is None else (rule, template, own)
    pattern, match = realization.pattern, realization.match
    labels = [(name, _written(value)) for name, value in match.labels.items()]
    if any(text is None for _, text in labels):
        return None
    bound = [(v, match.values.get(v)) for v in (*pattern.inputs, *pattern.outputs)]
    values = tuple([(v, number.get(b, b) if isinstance(b, str) else b is None) for v, b in bound])
    computed = tuple([(wanted, *map(number.get, n.outputs)) for wanted, n in match.nodes.items()])
    return rule, template, own, pattern, match.pattern, values, computed, tuple(labels)


def _written(label: object) -> str | None:
    """Return the value of a label as text; None for messages, other than attributes."""
    if isinstance(label, tuple):
        return repr([a.SerializeToString(deterministic=True) for a in label])
    return repr(label) if label is None or isinstance(label, bool | int | float | str | bytes | list) else None


def _stored(graph: Graph, value: str) -> Hashable:
    """Return a constant as the model stores it, without its name."""
    tensor = graph.constant_tensor(value)
    assert tensor is not None, value
    if tensor.HasField("raw_data"):
        return tensor.data_type, tuple(tensor.dims), tensor.raw_data
    data: bytes = _literal(graph, value, "").SerializeToString(deterministic=True)
    return data


def structure(node: Node) -> tuple[str, ...]:
    """Return the operands of data movement that address data rather than being data."""
    if not cuda.is_movement(node.op, node.domain):
        return ()
    return tuple(v for i, v in enumerate(node.inputs) if i not in node.data)


def _node(op: FusedOp, region: _Region) -> Node:
    proto = NodeProto(op_type=op.name, domain=DOMAIN, name=region.nodes[-1].proto.name)
    proto.input.extend(region.inputs)
    proto.output.extend(region.outputs)
    names, values = [n.proto.name for n in region.nodes], [*region.literals, *region.inner]
    provenance = {"rule": op.rule, "nodes": names, "values": values}
    for key, value in provenance.items():
        text = value if isinstance(value, str) else json.dumps(value)
        proto.metadata_props.add(key=f"{DOMAIN}.{key}", value=text)
    return Node(proto)


def _is_literal(graph: Graph, value: str, nodes: Sequence[Node]) -> bool:
    count = graph.element_count(value)
    if count == 1:
        return True
    if count is None:
        return False
    readers = [n for n in nodes if value in n.inputs]
    if count <= PLACES_LIMIT and all(value in structure(n) for n in readers):
        return True
    if count > STRUCTURAL_LIMIT or graph.type(value).dtype != TensorProto.INT64:
        return False
    return not any(n.is_elementwise for n in readers)


def _literal(graph: Graph, value: str, name: str) -> NodeProto:
    tensor = TensorProto()
    stored = graph.constant_tensor(value)
    assert stored is not None, value
    tensor.CopyFrom(stored)
    tensor.ClearField("name")
    tensor.ClearField("doc_string")
    return onnx.helper.make_node(ops.Constant, [], [name], value=tensor)


def _renamed(proto: NodeProto, formal: dict[str, str]) -> NodeProto:
    copy = NodeProto(op_type=proto.op_type, domain=proto.domain)
    copy.input.extend(formal[v] if v else "" for v in proto.input)
    copy.output.extend(formal[v] if v else "" for v in proto.output)
    for attribute in sorted(proto.attribute, key=lambda a: a.name):
        copy.attribute.append(attribute)
        copy.attribute[-1].ClearField("doc_string")
    return copy


def op_name(rule: str, operators: Sequence[str], digest: str, known: Collection[str]) -> str:
    """Return a fused op's name: its rule, its operators if few, and the digest, which alone identifies it.

    `Attention_29b67c0f12`, `Linear_AddGelu_d2f1a04c3b`; `GemmAddGelu_6be92d279a` where the chain names the rule, too.
    An op that another rule has made already shares that one's name from `known`.
    """
    if (made := next((name for name in known if name.rpartition("_")[2] == digest), None)) is not None:
        return made
    title = "".join(word[0].upper() + word[1:] for word in re.findall("[A-Za-z0-9]+", rule))
    title = title if title[:1].isalpha() else f"Rule{title}"
    # Transposes between layouts are not informative in a name.
    words = [op for op in operators if op != ops.Transpose] or list(operators)
    chain = "".join(words) if len(words) <= NAMED_OPS else ""
    return "_".join((chain,) if chain.startswith(title) else filter(None, (title, chain))) + f"_{digest}"


def digest_of(
    body: FunctionProto, library: FunctionProto | None, template: str, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> str:
    """Return a hash of body, library form, template and element types."""
    digest = hashlib.sha256(body.SerializeToString(deterministic=True))
    if library is not None:
        digest.update(library.SerializeToString(deterministic=True))
    digest.update(repr((template, inputs, outputs)).encode())
    return digest.hexdigest()[:10]
