"""The fuse phase: grow a region from each anchor, and replace the region by one fused op."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from onnxfuse import cuda
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.attempt import Attempt, GraphContext, Start
from onnxfuse.fusion.region.choices import Choices, Declined
from onnxfuse.fusion.region.decoding import keeps_cache
from onnxfuse.fusion.region.make_op import make_op
from onnxfuse.fusion.region.proof import launches, proven_op, unproven
from onnxfuse.fusion.region.weight_index import WeightIndex
from onnxfuse.fusion.steps.concat import join, joins_channels
from onnxfuse.fusion.steps.growth import grown, known_outline
from onnxfuse.fusion.steps.joined_input import is_concatenated
from onnxfuse.fusion.steps.k_major_weights import store_once
from onnxfuse.fusion.steps.left_operand import is_computed
from onnxfuse.fusion.steps.movement import sampled
from onnxfuse.fusion.steps.parallel import join_parallel
from onnxfuse.fusion.steps.pointwise import computed_once, host_values
from onnxfuse.fusion.steps.producer import join_producer
from onnxfuse.fusion.steps.start import start_at
from onnxfuse.fusion.steps.stored_transposes import put_back, set_aside
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN, FusedOp
from onnxfuse.rules.language import order
from onnxfuse.rules.language.fuse_table import THROUGH_LIBRARY, Anchor, Fuse, by_operator
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.equal_attempts import EqualAttempts
from onnxfuse.rules.match.match import Match, Refusal
from onnxfuse.rules.match.replace import instantiate
from onnxfuse.rules.match.report import Applied, Near, OptimizeReport, label, names
from onnxfuse.rules.pattern.pattern import PatternNode
from onnxfuse.rules.rewriting.rewrite import bind, find

FOLLOWERS = 8
"""Number of nodes after a failed anchor that its refusal lists: a longer chain is not one block to a reader."""

Outcome = tuple[FusedOp, Applied] | Refusal
"""A fused op with the nodes that it replaced, or the refusal."""


def fuse(
    graph: Graph,
    rules: Sequence[Rule],
    report: OptimizeReport,
    fused_ops: dict[str, FusedOp],
    choices: Choices | None = None,
) -> bool:
    """Apply every fusion rule: strongest template first, larger anchors before their possible parts.

    With `choices`, the rules' cost conditions are ignored, and fusions declined by measurements are skipped. Nothing is
    fused where ONNX Runtime does not expand functions. Return whether anything was fused.
    """
    if graph.in_function:
        return False
    before = len(report.applied)
    fusing = order.fusing(rules)
    aside = set_aside(graph)
    heads = _heads([how for _, how in fusing])
    around = GraphContext(
        host_values(graph),
        computed_once(graph),
        choices,
        heads,
        fused_ops,
        aside,
        WeightIndex(graph),
        EqualAttempts(graph),
        keeps_cache(graph),
    )
    splits = [
        s
        for _, how in fusing
        if how.splits
        for node in _of_operators(graph, how.split_roots)
        if (s := _split(graph, how, node)) is not None
    ]
    for rule, how in fusing:
        told = len(report.stopped)
        while _fuse_by(graph, rule, how, report, around) and how.wants(Growth.SIBLINGS):
            # Anchors of one input that were too many for one kernel may fit once some of them are fused.
            del report.stopped[told:]
    for split in splits:
        _join_unused(graph, split)
    put_back(graph, aside)
    store_once(graph)
    graph.eliminate_dead_code()
    return len(report.applied) > before


def _of_operators(graph: Graph, operators: Collection[str]) -> list[Node]:
    return [n for n in graph.nodes if n.op in operators]


def _fuse_by(graph: Graph, rule: Rule, how: Fuse, report: OptimizeReport, around: GraphContext) -> bool:
    """Try every node as an anchor of one rule; return whether one was fused."""
    before = len(report.applied)
    around.siblings.clear()
    of_fused = how.wants(Growth.PRODUCER) or how.wants(Growth.SHARED_INPUT)
    if how.wants(Growth.SHARED_INPUT) and not around.decodes:
        return False
    fuse_at = _join_at if of_fused or how.wants(Growth.CONCAT) else _fuse_at
    # Part of a larger anchor may be a smaller anchor: in reverse order the larger comes first.
    for node in _in_turn(graph, how):
        if node.order < 0 or node in around.alone or _off_gpu(node, around):
            continue
        if node.domain == DOMAIN and not of_fused:
            continue
        outcome = fuse_at(graph, rule, how, node, around)
        if isinstance(outcome, Refusal):
            report.stopped.append(Near(rule.name, label(node), _with_followers(graph, how, node, outcome)))
        elif outcome is not None:
            op, applied = outcome
            around.ops[op.name] = op
            report.applied.append(replace(applied, root=label(node)))
    return len(report.applied) > before


def _with_followers(graph: Graph, how: Fuse, root: Node, refusal: Refusal) -> Refusal:
    """Return an anchor's refusal with the pointwise nodes after it, which would have joined it."""
    if (refusal.missing and refusal.size > 1) or not how.anchors or not how.wants(Growth.EPILOGUE):
        return refusal
    found = {refusal.node: None}
    waiting = [root]
    for node in waiting:
        for reader in (r for o in node.outputs if o for r in graph.readers(o)):
            if len(found) < FOLLOWERS and reader.name not in found and reader.is_elementwise:
                found[reader.name] = None
                waiting.append(reader)
    return refusal._replace(around=tuple(found))


def _off_gpu(node: Node, around: GraphContext) -> bool:
    """Return whether ONNX Runtime folds `node` on load, or runs it on the CPU: no kernel starts there."""
    return bool(around.off_gpu) and around.off_gpu.issuperset(filter(None, node.outputs))


def _heads(hows: Sequence[Fuse]) -> dict[str, list[Anchor]]:
    anchors = (a for how in hows if _takes_what_follows(how) for a in how.anchors)
    # A purely pointwise anchor absorbs its followers at no higher cost than another kernel would.
    return by_operator(a for a in anchors if any(not _is_pointwise(n) for n in a.pattern.nodes))


def _is_pointwise(node: PatternNode) -> bool:
    return all(cuda.is_pointwise(op, node.domain) for op in node.operators)


def _takes_what_follows(how: Fuse) -> bool:
    return how.wants(Growth.EPILOGUE) and not how.wants(Growth.LIBRARY_ANCHOR)


def _in_turn(graph: Graph, how: Fuse) -> list[Node]:
    """Return the nodes whose operators an anchor may end in, in the order in which they are tried."""
    nodes = _of_operators(graph, how.roots) if how.anchors else list(graph.nodes)
    if how.wants(Growth.MOVEMENT) or any(anchor.realize is not None for anchor in how.anchors) or _nested(how.anchors):
        nodes.reverse()
    elif how.wants(Growth.WHOLE_INPUT):
        # A mask's sum joins the masked sum, not vice versa.
        nodes.sort(key=lambda n: -math.prod(sampled(graph.type(n.inputs[0])) or ()) if n.inputs else 0)
    return nodes


def _nested(anchors: Sequence[Anchor]) -> bool:
    """Return whether one anchor is a node inside another one, as Conv is between two Transposes."""
    single = {op for a in anchors if len(a.pattern.nodes) == 1 for op in a.pattern.root.operators}
    return any(n is not a.pattern.root and not single.isdisjoint(n.operators) for a in anchors for n in a.pattern.nodes)


# ---- splitting a node into a library product and a pointwise remainder


@dataclass(frozen=True)
class _Split:
    """A node rewritten as a product for the library, and a pointwise remainder for a kernel."""

    whole: Node
    product: Node
    rest: tuple[Node, ...]


def _split(graph: Graph, how: Fuse, node: Node) -> _Split | None:
    for split in how.splits:
        match = find(graph, split.source, split.where, node) if node.op in split.source.root.operators else None
        bound = bind(split.let, graph, match) if isinstance(match, Match) else None
        new = instantiate(split.target, graph, bound, {}) if isinstance(bound, Match) else None
        # A product of constants alone is folded into the remainder: nothing remains for the library.
        if isinstance(new, list) and new[0].op == node.op:
            product, *rest = new
            graph.types[product.outputs[0]] = graph.type(node.outputs[0])
            graph.replace([node], new)
            return _Split(node, product, tuple(rest))
    return None


def _join_unused(graph: Graph, split: _Split) -> None:
    """Restore the split node whose remainder no kernel absorbed."""
    if all(node.order >= 0 for node in split.rest):
        graph.replace([split.product, *split.rest], [split.whole])


# ---- one fused op


def _fuse_at(graph: Graph, rule: Rule, how: Fuse, node: Node, around: GraphContext) -> Outcome | None:
    """Fuse a region grown from `node`; return the fused op, the furthest refusal, or None if there is no work."""
    of_product, joined = how.wants(Growth.LEFT_OPERAND), how.wants(Growth.JOINED_INPUT)
    if of_product and not any(
        is_computed(graph, v, around.host) or (joined and is_concatenated(graph, v)) for v in node.inputs
    ):
        return None
    start = start_at(graph, how, node, around)
    if not isinstance(start, Start):
        # The product alone belongs to another rule, which reports why.
        return None if of_product else start
    attempt, outcome = _fuse_from(graph, rule, how, start, around)
    if isinstance(outcome, Refusal) and attempt.region.axes is not None and outcome.cause.kind == "no kernel":
        # No plan with the joined reductions: try the anchor alone.
        _, outcome = _fuse_from(graph, rule, how, start, around, Growth.REDUCTIONS)
    # No kernel of all anchors of one input: try those with equal columns, then this one alone.
    told: list[Refusal] = []
    for without, even in ((None, True), (Growth.SIBLINGS, False)):
        siblings = attempt.region.siblings
        if not isinstance(outcome, Refusal) or not siblings or node in around.alone:
            break
        if even and not attempt.region.uneven:
            continue
        told.append(outcome._replace(node=siblings[0].name))
        attempt, outcome = _fuse_from(graph, rule, how, start, around, without, even=even)
    if isinstance(outcome, Refusal) or not told:
        return outcome
    op, applied = outcome
    return op, replace(applied, stops=(*told, *applied.stops))


def _fuse_from(
    graph: Graph,
    rule: Rule,
    how: Fuse,
    start: Start,
    around: GraphContext,
    without: Growth | None = None,
    *,
    even: bool = False,
) -> tuple[Attempt, Outcome]:
    """Fuse a region grown from `start` by all of the rule's steps but one; `even`: siblings must have equal columns."""
    attempt, refusal = grown(graph, rule.name, how, start, around, without, even=even)
    outcome = refusal or _made(attempt)
    if isinstance(outcome, Refusal):
        return attempt, outcome
    op, fused = outcome
    replaced = names([*start.kept, *attempt.given])
    graph.replace(attempt.given, [fused])
    around.fused(attempt.given)
    kept = tuple(o for n in start.kept for o in n.outputs if o)
    library = bool(start.fallback) and op.template != start.fallback
    applied = Applied(
        rule.name, op.name, replaced, attempt.stops(), fused.outputs, kept, start.cost, library,
        cuda.multiplies_integers(op),
    )  # fmt: skip
    return attempt, (op, applied)


def _made(attempt: Attempt) -> tuple[FusedOp, Node] | Refusal:
    """Return the first variant of the op that has a plan and is not declined by measurements."""
    graph, start, around, template = attempt.graph, attempt.start, attempt.around, attempt.how.template
    own = attempt.nodes
    ways = [(sorted((*own, *attempt.extra), key=lambda n: n.order), template)] if attempt.extra else []
    ways += [(own, start.template or template), *([(own, start.fallback)] if start.fallback else [])]
    made: tuple[FusedOp, Node] | str = ""
    for nodes, of in ways:
        replaced = attempt.given if nodes is own else ()
        made = proven_op(graph, nodes, attempt.rule, of, start.realization, around.ops, around.made, replaced=replaced)
        if not isinstance(made, str):
            break
    if isinstance(made, str):
        if (outline := known_outline(attempt)) is not None:
            around.failed[outline] = made
        return attempt.refusal(made, "no kernel")
    if nodes is not own:
        attempt.nodes = attempt.given = nodes
    declined = _declined(around, made)
    if declined is not None and declined.library:
        through = make_op(
            graph, attempt.nodes, attempt.rule, THROUGH_LIBRARY, start.realization, around.ops, replaced=attempt.given
        )
        assert not isinstance(through, str), through  # the kernel is generated from the same form
        made = through
        declined = _declined(around, made)
    if declined is None:
        return made
    around.alone.update((*start.kept, *attempt.given) if declined.alone else ())
    return attempt.refusal(declined.reason, "slower")._replace(depth=len(attempt.given), size=len(attempt.given))


def _declined(around: GraphContext, made: tuple[FusedOp, Node]) -> Declined | None:
    """Return what the measurements say against an op at its location, None if nothing."""
    op, fused = made
    return None if around.choices is None else around.choices.declined.get((op.name, fused.outputs))


def _join_at(graph: Graph, rule: Rule, how: Fuse, node: Node, around: GraphContext) -> Outcome | None:
    """Merge fused ops: let those whose results a Concat combines write its output directly, or join an op to the one
    that computes its input, or to one that shares an input."""
    concatenates = how.wants(Growth.CONCAT)
    merge = join if concatenates else join_parallel if how.wants(Growth.SHARED_INPUT) else join_producer
    made = merge(graph, node, around.ops, rule.name, how.template)
    if made is None:
        return None
    if isinstance(made, str):
        # Anything but a Concat of images is no near miss.
        cause = Cause("no concat" if concatenates else "outside", seen=made)
        return Refusal(node.name, cause, int(not concatenates or joins_channels(graph, node)), 1 + len(node.inputs))
    op, fused, members = made
    together = Refusal(node.name, Cause("slower"), len(members), len(members), tuple(n.name for n in members))
    if (reason := unproven(graph, op, fused, around.ops)) is not None:
        return together._replace(cause=Cause("no kernel", seen=reason))
    if cuda.TEMPLATES[op.template].of and launches(graph, op, fused, around.decodes) != 1:
        return together._replace(cause=Cause("no saving", seen="as far as sizes are known, it would save no launch"))
    if (declined := _declined(around, (op, fused))) is not None:
        return together._replace(cause=Cause("slower", seen=declined.reason))
    nodes = [*dict.fromkeys((*members, node))]
    replaced = names(nodes)
    graph.replace(nodes, [fused])
    return op, Applied(rule.name, op.name, replaced, (), fused.outputs)
