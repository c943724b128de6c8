"""The fuse phase: from every anchor a region grows, and the region becomes one fused op."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onnxfuse import kernels
from onnxfuse.model.fused import DOMAIN, FusedOp
from onnxfuse.model.graph import Graph, Node
from onnxfuse.model.types import shapes_differ
from onnxfuse.rewrite.fuse.choices import Choices, Declined
from onnxfuse.rewrite.fuse.concat import join, joins_channels
from onnxfuse.rewrite.fuse.k_major_weights import with_terms_last
from onnxfuse.rewrite.fuse.left_operand import grow_prologue
from onnxfuse.rewrite.fuse.make_op import Realization, make_op
from onnxfuse.rewrite.fuse.movement import grow_moving, launches, not_movement, sampled, saves, trim
from onnxfuse.rewrite.fuse.pointwise import Region, grow, host_values, not_pointwise, reduced_axes
from onnxfuse.rewrite.fuse.proof import proven_op, unproven
from onnxfuse.rewrite.fuse.transposed_io import grow_loads, grow_stores
from onnxfuse.rewrite.language import predicate
from onnxfuse.rewrite.language.fuse_table import THROUGH_LIBRARY, Anchor, Fuse
from onnxfuse.rewrite.language.pattern import realized
from onnxfuse.rewrite.language.rule_file import Rule
from onnxfuse.rewrite.match.cause import Cause
from onnxfuse.rewrite.match.match import Match, Refusal
from onnxfuse.rewrite.match.replace import instantiate
from onnxfuse.rewrite.report import Applied, Near, Report, names
from onnxfuse.rewrite.simplify.rewrite import bind, find


@dataclass(frozen=True)
class _Surroundings:
    """What every attempt in a graph has to heed."""

    host: frozenset[str]
    """Values that live on the CPU."""
    choices: Choices | None
    """What was measured; None: what the rules say of cost holds."""
    heads: tuple[Anchor, ...]
    """Of the rules whose kernels take the pointwise work after them."""
    ops: dict[str, FusedOp]
    """Those made so far, by their names."""
    alone: set[Node] = field(default_factory=set)
    """Nodes that were measured faster as they are."""


def fuse(
    graph: Graph,
    rules: Sequence[Rule],
    report: Report,
    ops: dict[str, FusedOp],
    choices: Choices | None = None,
) -> None:
    """Let every fuse rule take its nodes: strongest template first, larger anchors before what may be part of them.

    With `choices`, what rules say of cost is not asked, and the places that measuring declined are left out.
    """
    fusing = [(rule, rule.fuse) for rule in rules if rule.fuse is not None]
    # Data movement before other pointwise work, which it takes in; the other way round it would find less.
    fusing.sort(key=lambda rf: (kernels.TEMPLATES[rf[1].template].order, not rf[1].moving, -_size(rf[1]), rf[0].name))
    around = _Surroundings(host_values(graph), choices, _heads([how for _, how in fusing]), ops)
    splits = [s for _, how in fusing for node in list(graph.nodes) if (s := _split(graph, how, node)) is not None]
    for rule, how in fusing:
        told = len(report.stopped)
        while _fuse_by(graph, rule, how, report, around) and how.beside:
            # Of anchors that read one value, those that were too many together may be few enough once some are fused.
            del report.stopped[told:]
    for split in splits:
        _join_unused(graph, split)
    graph.remove_dead()


def _fuse_by(graph: Graph, rule: Rule, how: Fuse, report: Report, around: _Surroundings) -> bool:
    """Ask every node to be an anchor of one rule; return whether one was."""
    before = len(report.applied)
    # What a larger anchor holds may be a smaller one: from the end of the graph the larger comes first.
    for node in _in_turn(graph, how):
        if node.order < 0 or node.domain == DOMAIN or node in around.alone:
            continue
        outcome = _join_at(graph, rule, node, around) if how.joining else _fuse_at(graph, rule, how, node, around)
        if isinstance(outcome, Refusal):
            report.stopped.append(Near(rule.name, f"{node.op} {node.name}", outcome))
        elif outcome is not None:
            op, applied = outcome
            around.ops[op.name] = op
            report.applied.append(applied)
    return len(report.applied) > before


def _heads(hows: Sequence[Fuse]) -> tuple[Anchor, ...]:
    anchors = (a for how in hows if how.epilogue and not how.library for a in how.anchors)
    # What is pointwise through and through takes what follows it for no less than another kernel would.
    return tuple(a for a in anchors if any(not kernels.is_pointwise(n.op, n.domain) for n in a.pattern.nodes))


def _takes(graph: Graph, node: Node, around: _Surroundings) -> bool:
    """Return whether the kernel of some rule begins at `node` and takes what follows it."""
    alone = node in around.alone or node.order < 0 or bool(node.domain)
    return not alone and any(isinstance(_find(graph, a, node, around), Match) for a in around.heads)


def _in_turn(graph: Graph, how: Fuse) -> list[Node]:
    """Return the nodes in the order in which they are asked to be an anchor."""
    nodes = list(graph.nodes)
    if how.moving or any(anchor.realize is not None for anchor in how.anchors) or _nested(how.anchors):
        nodes.reverse()
    elif how.over:
        # The sum of a mask joins the masked sum, not the other way round.
        nodes.sort(key=lambda n: -math.prod(sampled(graph.type(n.inputs[0])) or ()) if n.inputs else 0)
    return nodes


def _nested(anchors: Sequence[Anchor]) -> bool:
    """Return whether one anchor is a node that stands inside another one, as Conv does between two Transposes."""
    single = {a.pattern.root.op for a in anchors if len(a.pattern.nodes) == 1}
    return any(n is not a.pattern.root and n.op in single for a in anchors for n in a.pattern.nodes)


def _size(how: Fuse) -> int:
    return max((len(anchor.pattern.nodes) for anchor in how.anchors), default=0)


# ---- products and what the library would do to them


@dataclass(frozen=True)
class _Split:
    """A node written as the product that the library computes, and the pointwise rest that a kernel can take."""

    whole: Node
    product: Node
    rest: tuple[Node, ...]


def _split(graph: Graph, how: Fuse, node: Node) -> _Split | None:
    for split in how.splits:
        match = find(graph, split.source, split.where, node) if node.op == split.source.root.op else None
        bound = bind(split.let, graph, match) if isinstance(match, Match) else None
        new = instantiate(split.target, graph, bound, {}) if isinstance(bound, Match) else None
        # A product of constants alone is folded into the rest: the library is left nothing.
        if isinstance(new, list) and new[0].op == node.op:
            product, *rest = new
            graph.types[product.outputs[0]] = graph.type(node.outputs[0])
            graph.replace([node], new)
            return _Split(node, product, tuple(rest))
    return None


def _join_unused(graph: Graph, split: _Split) -> None:
    """Put the node back together whose rest no kernel took."""
    if all(node.order >= 0 for node in split.rest):
        graph.replace([split.product, *split.rest], [split.whole])


# ---- growing from an anchor


@dataclass(frozen=True)
class _Start:
    """Where growth begins."""

    value: str
    """The value whose shape the kernel runs over."""
    reduced: str = ""
    """A value of another shape that the anchor ends in; growth goes on from there, too."""
    axes: frozenset[int] | None = None
    """What the anchor reduces, where it is a reduction that others may join."""
    seeds: tuple[Node, ...] = ()
    """Nodes that are in the region from the start."""
    kept: tuple[Node, ...] = ()
    """Nodes of the anchor that stay outside, for the library."""
    shared: str = ""
    """The value that the anchors beside this one read, too."""
    beside: int = 1
    """How many anchors the seeds are."""
    spread: str = ""
    """A value that is broadcast inside the kernel, and may be computed there."""
    factor: str = ""
    """A value that the kernel computes, or nothing is fused."""
    realization: Realization | None = None
    """The whole anchor through an op of the library, where the rule has one."""
    template: str = ""
    """The template, where it is not the rule's."""
    fallback: str = ""
    """The template where no kernel can be generated for the anchor; empty = then nothing is fused."""
    cost: str = ""
    """What the rule says against a kernel here, where measuring decides instead."""


def _fuse_at(
    graph: Graph, rule: Rule, how: Fuse, node: Node, around: _Surroundings
) -> tuple[FusedOp, Applied] | Refusal | None:
    """Fuse what grows from `node`. Returns the fused op, the furthest refusal, or None where nothing was to be done."""
    if how.factor and not any(_is_computed(graph, v, around) for v in node.inputs):
        return None
    start = _start(graph, how, node, around)
    if not isinstance(start, _Start):
        # The product alone is another rule's matter, which tells why.
        return None if how.factor else start
    beside = _beside(graph, how, node, start, around) if how.beside else ()
    together = replace(start, seeds=(*start.seeds, *beside), beside=1 + len(beside))
    outcome = _fuse_from(graph, rule, how, node, together, around)
    if start.axes is not None and not isinstance(outcome, tuple) and outcome.cause.kind == "no kernel":
        # With the reductions that joined there is none: the anchor by itself.
        outcome = _fuse_from(graph, rule, how, node, replace(start, axes=None), around)
    if beside and not isinstance(outcome, tuple) and node not in around.alone:
        alone = _fuse_from(graph, rule, how, node, start, around)
        if isinstance(alone, Refusal):
            return alone
        op, applied = alone
        return op, replace(applied, stops=(replace(outcome, node=beside[0].name), *applied.stops))
    return outcome


def _join_at(graph: Graph, rule: Rule, node: Node, around: _Surroundings) -> tuple[FusedOp, Applied] | Refusal | None:
    """Let the fused ops that a Concat puts together write its output themselves: one op of all of them."""
    if node.op != "Concat":
        return None
    made = join(graph, node, around.ops, rule.name)
    if isinstance(made, str):
        # What is no Concat of images at all was not near.
        return Refusal(node.name, Cause("no concat", seen=made), int(joins_channels(graph, node)), 1 + len(node.inputs))
    op, fused, members = made
    if (reason := unproven(graph, op, fused, around.ops)) is not None:
        return Refusal(node.name, Cause("no kernel", seen=reason), len(members), len(members))
    declined = around.choices.declined.get((op.name, fused.outputs)) if around.choices is not None else None
    if declined is not None:
        return Refusal(node.name, Cause("slower", seen=declined.reason), len(members), len(members))
    replaced = names([*members, node])
    graph.replace([*members, node], [fused])
    return op, Applied(rule.name, op.name, replaced, (), fused.outputs)


def _fuse_from(
    graph: Graph, rule: Rule, how: Fuse, node: Node, start: _Start, around: _Surroundings
) -> tuple[FusedOp, Applied] | Refusal:
    smaller = [graph.type(start.reduced).shape] if start.reduced else []
    spread = graph.type(start.spread).shape if start.spread else None
    region = Region(
        dict.fromkeys(start.seeds), graph.type(start.value), how.template, smaller, start.axes, spread,
        alone=around.alone, beside=start.beside,
    )  # fmt: skip
    if how.moving:
        grow_moving(graph, region, around.host, rule.name, prologue=how.prologue, epilogue=how.epilogue)
        trim(graph, region)
    else:
        grow(graph, region, start.kept, prologue=how.prologue, epilogue=how.epilogue, host=around.host)
    fed = not how.factor or grow_prologue(
        graph, region, start.factor, start.seeds, around.host, lambda n: _takes(graph, n, around)
    )
    if how.transposes and how.template == "row":
        grow_loads(graph, region, around.host, rule.name)
    if how.transposes:
        grow_stores(graph, region, around.host, rule.name, measured=around.choices is not None)
    stops = tuple(
        Refusal(n.name, Cause("outside", seen=reason), len(region.nodes)) for n, reason in region.stops.items()
    )
    nodes = sorted(region.nodes, key=lambda n: n.order)
    reason = _too_little(how, start, nodes, stops) or (saves(graph, nodes, rule.name) if how.moving else None)
    if not fed:
        maker = graph.producer(start.factor)
        reason = "its left factor is no pointwise node's" if maker is None else region.stops[maker]
    given = nodes
    if reason is None and how.terms_last:
        nodes = with_terms_last(graph, given, how.terms_last)
    made: tuple[FusedOp, Node] | str = reason or ""
    if reason is None and (endings := _endings(graph, how, nodes)):
        ended = sorted((*nodes, *endings), key=lambda n: n.order)
        made = proven_op(graph, ended, rule.name, how.template, start.realization, around.ops)
        if not isinstance(made, str):
            nodes = given = ended
    if reason is None and isinstance(made, str):
        made = proven_op(graph, nodes, rule.name, start.template or how.template, start.realization, around.ops)
        if isinstance(made, str) and start.fallback:
            made = proven_op(graph, nodes, rule.name, start.fallback, start.realization, around.ops)
    if isinstance(made, str):
        _give_back(graph, nodes, given)
        kind = "no kernel" if reason is None else "too little"
        return Refusal(node.name, Cause(kind, seen=made), len(region.nodes), len(start.seeds) + max(how.least, 1))
    op, fused = made
    declined = _declined(around, made)
    if declined is not None and declined.library:
        made = make_op(graph, nodes, rule.name, THROUGH_LIBRARY, start.realization)
        assert not isinstance(made, str), made  # the kernel was made of the same form
        op, fused = made
        declined = _declined(around, made)
    if declined is not None:
        _give_back(graph, nodes, given)
        around.alone.update((*start.kept, *given) if declined.alone else ())
        return Refusal(node.name, Cause("slower", seen=declined.reason), len(given), len(given))
    replaced = names([*start.kept, *given])
    graph.replace(nodes, [fused])
    kept = tuple(o for n in start.kept for o in n.outputs if o)
    return op, Applied(rule.name, op.name, replaced, stops, fused.outputs, kept, start.cost)


def _declined(around: _Surroundings, made: tuple[FusedOp, Node]) -> Declined | None:
    """Return what measuring says against an op at its place, None where nothing."""
    op, fused = made
    return None if around.choices is None else around.choices.declined.get((op.name, fused.outputs))


def _endings(graph: Graph, how: Fuse, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes that make one more output of one that the kernel has: the first of the rule's endings there."""
    readers = [(v, r) for v in graph.outputs_of(nodes) for r in graph.readers(v)] if how.endings else []
    for value, reader in readers:
        for ending in how.endings:
            if reader.op == ending.pattern.root.op:
                found = find(graph, ending.pattern, ending.where, reader)
                if isinstance(found, Match) and found.values[ending.pattern.inputs[0]] == value:
                    return tuple(n for n in found.nodes.values() if n.op != "Constant")
    return ()


def _give_back(graph: Graph, nodes: Sequence[Node], given: Sequence[Node]) -> None:
    """Put the nodes in place again that were rewritten for a kernel which is not made."""
    if (old := [n for n in nodes if n not in given]) and (new := [n for n in given if n not in nodes]):
        graph.replace(old, new)


def _start(graph: Graph, how: Fuse, node: Node, around: _Surroundings) -> _Start | Refusal | None:
    if how.moving:
        moves = not_movement(graph, node, around.host) is None and (
            not kernels.is_free(node.op, node.domain) or _parts_a_chain(graph, node, around)
        )
        return _Start(graph.outputs_of([node])[0], seeds=(node,)) if moves else None
    if not how.anchors:
        return _Start(node.outputs[0], seeds=(node,)) if not_pointwise(graph, node, around.host) is None else None
    furthest: Refusal | None = None
    for anchor in how.anchors:
        found = _find(graph, anchor, node, around)
        if isinstance(found, Match):
            start = _start_from(graph, how, anchor, found, node, around)
            if not isinstance(start, _Start) or start.template == THROUGH_LIBRARY:
                return start
            return replace(start, cost=_cost(graph, anchor, found))
        if found is not None and (furthest is None or found.depth > furthest.depth):
            furthest = found
    # A node that was not split for a reason of its own is told by that reason, not by the spelling it was left in.
    for split in how.splits:
        found = find(graph, split.source, split.where, node) if node.op == split.source.root.op else None
        if isinstance(found, Refusal) and (furthest is None or found.depth > furthest.depth):
            furthest = found
    return furthest


def _is_computed(graph: Graph, value: str, around: _Surroundings) -> bool:
    """Return whether a pointwise node computes `value`."""
    maker = graph.producer(value)
    return maker is not None and not_pointwise(graph, maker, around.host) is None


def _parts_a_chain(graph: Graph, node: Node, around: _Surroundings) -> bool:
    """Return whether pointwise work stands on both sides of a node that launches nothing by itself."""
    before = graph.producer(node.inputs[0])
    beside = [before, *graph.readers(node.outputs[0])] if before is not None else []
    work = [n for n in beside if n is not None and not_pointwise(graph, n, around.host) is None]
    return before in work and len(work) > 1


def _find(graph: Graph, anchor: Anchor, node: Node, around: _Surroundings) -> Match | Refusal | None:
    """Return the match of `anchor` at `node`, or its refusal; where nothing was measured, cost refuses too."""
    if node.op != anchor.pattern.root.op:
        return None
    decides = around.choices is None and not anchor.kernel  # else it chooses between the kernel and the library's op
    asked = (*anchor.where, *anchor.cost) if decides else anchor.where
    return find(graph, anchor.pattern, asked, node)


def _cost(graph: Graph, anchor: Anchor, match: Match) -> str:
    """Return what the rule says against a kernel at this match, empty where nothing."""
    causes = (predicate.holds(p, graph, match) for p in anchor.cost)
    return next((c.text for c in causes if c is not None), "")


def _start_from(
    graph: Graph, how: Fuse, anchor: Anchor, match: Match, root: Node, around: _Surroundings
) -> _Start | Refusal:
    matched = tuple(sorted(match.nodes.values(), key=lambda n: n.order))
    if how.library:
        return _Start(root.outputs[0], kept=matched)
    bound = bind(anchor.let, graph, match)
    if isinstance(bound, Refusal):
        return bound
    form = None if anchor.realize is None else realized(anchor.realize, match.pattern)
    realization = None if form is None else Realization(form, bound)
    seeds = tuple(n for n in matched if n.op != "Constant")
    shared = match.values[how.beside] if how.beside else ""
    if how.over:
        whole = str(match.values[how.over])
        # Without them a value of the whole cannot be told from what is left of it.
        if (unknown := next((v for v in (whole, root.outputs[0]) if graph.type(v).shape is None), None)) is not None:
            return Refusal(root.name, Cause("label", f"the rank of '{unknown}'"), len(matched), len(matched))
        return _Start(whole, root.outputs[0], reduced_axes(graph, root) if len(seeds) == 1 else None, seeds)
    spread = str(match.values[how.broadcast]) if how.broadcast else ""
    factor = str(match.values[how.factor]) if how.factor else ""
    start = _Start(
        root.outputs[0], seeds=seeds, shared=str(shared), spread=spread, factor=factor, realization=realization
    )
    if realization is None or how.prologue or how.epilogue:
        return start
    possible = anchor.kernel and all(predicate.holds(p, graph, match) is None for p in anchor.kernel)
    faster = possible and (around.choices is not None or not _cost(graph, anchor, match))
    return replace(start, template=how.template if faster else THROUGH_LIBRARY, fallback=THROUGH_LIBRARY)


def _beside(graph: Graph, how: Fuse, root: Node, start: _Start, around: _Surroundings) -> tuple[Node, ...]:
    """Return the other anchors of the same shape that read the same value, in the graph's order.

    Of more than one launch is meant for, as many as make equal launches: 12 products of one input are two of six.
    """
    found = []
    for node in graph.readers(start.shared):
        if (
            node is root
            or node.order < 0
            or node in around.alone
            or shapes_differ(graph.type(node.outputs[0]).shape, graph.type(start.value).shape)
        ):
            continue
        matches = (_find(graph, a, node, around) for a in how.anchors)
        if any(isinstance(m, Match) and m.values[how.beside] == start.shared for m in matches):
            found.append(node)
    parts = -(-(1 + len(found)) // kernels.TEMPLATES[how.template].beside)
    most = -(-(1 + len(found)) // parts)
    return tuple(sorted(found, key=lambda n: n.order)[: most - 1])


def _too_little(how: Fuse, start: _Start, nodes: Sequence[Node], stops: Sequence[Refusal]) -> str | None:
    # An anchor beside this one counts as grown: one kernel takes the place of two.
    own = 1 if how.beside else len(start.seeds)
    grown = launches(nodes) if how.moving else len(nodes) - (own if how.anchors else 0)
    if nodes and grown >= how.least:
        return None
    neighbour = f"; {stops[0].node}: {stops[0].reason}" if stops else ""
    what = "nodes that launch something" if how.moving else "pointwise nodes around it"
    return f"too little to fuse: {grown} {what}, the rule wants {max(how.least, 1)}{neighbour}"
