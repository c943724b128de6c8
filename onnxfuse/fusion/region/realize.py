"""Rebuild the library form of fused ops from their bodies, without trusting what the file claims.

A rule's `realize` replaces an anchor by an ONNX Runtime op where the rule proves that both compute the same. The proof
covers only the nodes that the rule itself matches in a body, at the location of the body: with its constants, its
shapes and its incoming mask. So the body is inlined again, and the rule searches for its anchor there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import onnx
from onnx import FunctionProto, GraphProto, NodeProto, TensorProto

from onnxfuse import cuda, ops
from onnxfuse.files import external
from onnxfuse.files.io import without_weights
from onnxfuse.fusion.region.make_op import Realization, library_form
from onnxfuse.graph.concrete_shapes import every_graph
from onnxfuse.graph.graph import Graph, Node, bodies
from onnxfuse.model.fused import DOMAIN, FusedOp
from onnxfuse.model.schema import opset_of
from onnxfuse.ops import Trait, named
from onnxfuse.rules.language import predicate
from onnxfuse.rules.language.fuse_table import Anchor
from onnxfuse.rules.language.rule_file import Rule, read, shipped, shipped_files
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Match, Trace, matches
from onnxfuse.rules.pattern.pattern import realized
from onnxfuse.rules.rewriting.rewrite import bind
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import Dim
from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import plural


@dataclass(frozen=True)
class Realized:
    """The library form that rules build for a fused op at all its locations."""

    form: FunctionProto | None
    """The library form; None if the rule builds none, or not the same at every location."""
    reason: str
    """Why there is none."""
    shapes: tuple[tuple[tuple[Dim, ...] | None, ...], ...]
    """Input shapes at each location, as far as they follow from the model's inputs and weights."""
    runs: bool = True
    """Whether the library may run the form; else it only describes what a kernel computes."""


def realize(
    model: onnx.ModelProto, fused_ops: Mapping[str, FusedOp], rules: Sequence[Rule] = (), path: Path | None = None
) -> dict[str, Realized]:
    """Return the library forms that rules build for `fused_ops`, fused ops of `model`, which is not changed.

    `rules` are the user's own; shipped ones are known. `path` is the model's file: external weights are read only if
    they may be masks. Library forms and shapes in the file are not trusted. Raises ModelError for an invalid model.
    """
    whole, places = _expanded(model)
    if path is not None:
        external.read(_masks(whole.graph), path)
    found: dict[str, list[Realized]] = {name: [] for name in fused_ops}
    anchors = {name: _anchors(op, rules) for name, op in fused_ops.items()}
    opset = opset_of(whole)

    def visit(proto: GraphProto, inferred: GraphProto, parent: Graph | None) -> None:
        graph = Graph(proto, inferred, opset, parent)
        inside = dict[_Place, list[Node]]()
        for node in graph.nodes:
            if (place := places.get(node.proto.name)) is not None and place.op in fused_ops:
                inside.setdefault(place, []).append(node)
        for place, nodes in inside.items():
            found[place.op].append(_at(graph, fused_ops[place.op], place, nodes, anchors[place.op]))
        for node, twin in zip(proto.node, inferred.node, strict=True):
            for body, other in zip(bodies(node), bodies(twin), strict=True):
                visit(body, other, graph)

    visit(whole.graph, infer(whole).graph, None)
    return {name: _of_all(each) for name, each in found.items()}


def _of_all(places: Sequence[Realized]) -> Realized:
    """Return the form common to every location: one op has one form."""
    if not places:
        return Realized(None, "it is in no graph of the model", ())
    shapes = tuple(shape for place in places for shape in place.shapes)
    without = next((p for p in places if p.form is None), None)
    if without is not None:
        return Realized(None, without.reason, shapes)
    if any(p.form != places[0].form for p in places):
        return Realized(None, "its places differ in what the library has to be told", shapes)
    return Realized(places[0].form, "", shapes, all(p.runs for p in places))


# ---- inlining the bodies


@dataclass(frozen=True, eq=False)
class _Place:
    """A location of a fused op in the model."""

    op: str
    inputs: tuple[str, ...]
    formal: Mapping[str, str]
    """Graph value -> name in the body."""


def _expanded(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, _Place]]:
    """Return the model with every fused op inlined, and the location that each inlined node's name belongs to."""
    whole = without_weights(model, lambda _: None)
    functions = {f.name: f for f in whole.functions if f.domain == DOMAIN}
    places: dict[str, _Place] = {}
    for graph in reversed(list(every_graph(whole.graph))):  # bodies first: a graph's nodes are copied with theirs
        del graph.value_info[:]
        nodes: list[NodeProto] = []
        for node in graph.node:
            if node.domain == DOMAIN and node.op_type in functions:
                nodes += _inlined(node, functions[node.op_type], places)
            else:
                node.name = ""
                nodes.append(node)
        kept = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del graph.node[:]
        graph.node.extend(kept)
    products = _products(whole.graph)
    # A product's weight needs no data: copying that of BERT-base takes 0.1 s.
    weights = model.graph.initializer
    whole.graph.initializer.extend(external.without_data(w) if w.name in products else w for w in weights)
    for value in whole.graph.output:
        value.type.tensor_type.ClearField("shape")
    others = [f for f in whole.functions if f.domain != DOMAIN]
    kept_functions = [FunctionProto.FromString(f.SerializeToString()) for f in others]
    del whole.functions[:]
    whole.functions.extend(kept_functions)
    return whole, places


def _inlined(node: NodeProto, body: FunctionProto, places: dict[str, _Place]) -> list[NodeProto]:
    if len(node.input) != len(body.input) or len(node.output) != len(body.output):
        raise ModelError(
            f"the model is not valid: {node.op_type} has {plural(node.input, 'input')} and "
            f"{plural(node.output, 'output')}, its "
            f"function {len(body.input)} and {len(body.output)}",
            "Optimize the original model again.",
        )
    number = len(places)
    own = [o for n in body.node for o in n.output if o]
    actual = {v: f"{DOMAIN}:{number}:{v}" for v in own}
    actual |= dict(zip(body.input, node.input, strict=True)) | dict(zip(body.output, node.output, strict=True))
    place = _Place(node.op_type, tuple(node.input), {value: name for name, value in actual.items() if value})
    nodes = []
    for index, inner in enumerate(body.node):
        copy = NodeProto()
        copy.CopyFrom(inner)
        copy.name = f"{DOMAIN}:{number}:{index}"
        places[copy.name] = place
        del copy.input[:]
        del copy.output[:]
        # A name unknown to the body is not a graph value either.
        copy.input.extend(v and actual.get(v, f"{DOMAIN}:{number}:{v}") for v in inner.input)
        copy.output.extend(v and actual[v] for v in inner.output)
        nodes.append(copy)
    return nodes


LARGEST_MASK = 2**26
"""Maximum bytes of an external weight that is read: the size of a mask of 8192 positions."""

PRODUCTS = named(Trait.CONTRACTION) | {ops.Gather}
"""Operators whose weights no rule inspects beyond SMALL bytes."""


def _products(graph: GraphProto) -> set[str]:
    """Return the operands of products."""
    return {v for one in every_graph(graph) for n in one.node if n.op_type in PRODUCTS for v in n.input}


def _masks(graph: GraphProto) -> list[TensorProto]:
    """Return the main graph's weights that may be masks: their values decide whether one is causal."""
    products = _products(graph)
    return [
        w for w in graph.initializer
        if external.is_external(w) and w.name not in products and external.bytes_of(w) <= LARGEST_MASK
    ]  # fmt: skip


# ---- matching at a location


def _at(graph: Graph, op: FusedOp, place: _Place, nodes: Sequence[Node], anchors: list[Anchor] | str) -> Realized:
    """Return the realization of the anchors at a location; the matched spellings move to the front.

    So of twelve layers only the first is compared with every spelling: all of BERT-base in 94 ms, not 225 (one core,
    2026-11).
    """
    shapes = (tuple(graph.type(v).shape for v in place.inputs),)
    if isinstance(anchors, str):
        return Realized(None, anchors, shapes)
    free = {n for n in nodes if n.op != ops.Constant}
    realizations, runs = list[Realization](), True
    trace = Trace()
    for node in reversed(nodes):
        made = _first(graph, anchors, node, free, trace) if node in free else None
        if made is not None:
            anchor, realization = made
            realizations.append(realization)
            match = realization.match
            runs = runs and all(predicate.holds(p, graph, match) is None for p in anchor.realizable)
            free -= set(realization.match.nodes.values())
            if anchor.pattern.calls:
                anchors.insert(0, replace(anchor, pattern=realization.match.pattern))
    if not realizations:
        told = f": {trace.furthest.reason}" if trace.furthest is not None else ""
        return Realized(None, f"the rule {op.rule} does not find in its body what the library could do{told}", shapes)
    form = library_form(op.body, realizations, place.formal, graph.opset)
    return Realized(None, form, shapes) if isinstance(form, str) else Realized(form, "", shapes, runs)


def _first(
    graph: Graph, anchors: Sequence[Anchor], root: Node, free: set[Node], trace: Trace
) -> tuple[Anchor, Realization] | None:
    """Return the first anchor that matches at `root` within the unclaimed nodes."""
    outcomes = predicate.Outcomes()
    for anchor in anchors:
        assert anchor.realize is not None
        if root.op not in anchor.pattern.root.operators:
            continue
        for match in matches(anchor.pattern, graph, root, trace):
            if not free.issuperset(match.nodes.values()):
                outside = Cause("outside", seen="what the rule finds is not all in the body")
                trace.stop(root, outside, match, whole=True)
                continue
            form_of_kernel = anchor.realizable if not anchor.kernel else ()
            asked = (*anchor.where, *form_of_kernel, *predicate.spelling_conditions(match.pattern))
            failed = next((r for p in asked if (r := outcomes.holds(p, graph, match)) is not None), None)
            bound = bind(anchor.let, graph, match) if failed is None else None
            if isinstance(bound, Match):
                return anchor, Realization(realized(anchor.realize, match.pattern), bound)
            why = bound.cause if bound is not None else failed
            assert why is not None
            trace.stop(root, why, match, whole=True)
    return None


def _anchors(op: FusedOp, rules: Sequence[Rule]) -> list[Anchor] | str:
    """Return the anchors that may have made the op and have a library form; or why there are none."""
    merging = cuda.TEMPLATES.get(op.template)
    if merging is not None and (merging.joins_slots or merging.joins):
        pairs = [(r, cuda.TEMPLATES[r.fuse.template]) for r in (*rules, *shipped()) if r.fuse is not None]
        makers = [r for r, of in pairs if (of.writes_slots if merging.joins_slots else of.leaves_extremes)]
    else:
        own = next((r for r in rules if r.name == op.rule), None) or _shipped(op.rule)
        makers = [] if own is None else [own]
    if not makers:
        return f"its rule '{op.rule}' is not known here; pass its folder as rules="
    found = [a for r in makers if r.fuse is not None for a in r.fuse.anchors if a.realize is not None]
    return found or f"the rule {op.rule} has no library form"


@cache
def _shipped(name: str) -> Rule | None:
    """Return the shipped rule of this name; no other file is read."""
    path = shipped_files().get(name)
    return None if path is None else read(path, spellings=False)
