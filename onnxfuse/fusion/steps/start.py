"""Start of growth: match a rule's anchor at a node."""

from onnxfuse import cuda, ops
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.attempt import GraphContext, Start
from onnxfuse.fusion.region.make_op import Realization
from onnxfuse.fusion.steps.movement import not_movement
from onnxfuse.fusion.steps.pointwise import not_pointwise
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN
from onnxfuse.rules.language import predicate
from onnxfuse.rules.language.fuse_table import ANY_MOVEMENT, THROUGH_LIBRARY, Anchor, Fuse
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Match, Refusal
from onnxfuse.rules.pattern.pattern import realized
from onnxfuse.rules.rewriting.rewrite import bind, find
from onnxfuse.shapes.types import shapes_differ


def start_at(graph: Graph, how: Fuse, node: Node, around: GraphContext) -> Start | Refusal | None:
    """Return the rule's anchor match at `node`, the furthest refusal, or None if it was no near miss."""
    if how.anchor == ANY_MOVEMENT:
        moves = not_movement(graph, node, around.host) is None and (
            not cuda.is_free(node.op, node.domain) or _parts_a_chain(graph, node, around)
        )
        return Start(node, graph.outputs_of([node])[0], (node,)) if moves else None
    if not how.anchors:
        reason = not_pointwise(graph, node, around.host)
        if reason is None:
            return Start(node, node.outputs[0], (node,))
        if not node.is_elementwise:
            return None
        untyped = any(not graph.type(v).dtype for v in (*node.reads, *node.outputs))
        return Refusal(node.name, Cause("untyped" if untyped else "outside", seen=reason), 1, 1, (node.name,))
    furthest: Refusal | None = None
    for anchor in how.anchors_at.get(node.op, ()):
        found = anchored(graph, anchor, node, around, furthest)
        if isinstance(found, Match):
            return _start_from(graph, how, anchor, found, node, around)
        furthest = found or furthest
    # If a node was not split, report that reason, not the mismatch of its unsplit form.
    for split in how.splits:
        if node.op in split.source.root.operators:
            found = find(graph, split.source, split.where, node, furthest)
            furthest = found if isinstance(found, Refusal) else furthest
    return furthest


def anchored(
    graph: Graph, anchor: Anchor, node: Node, around: GraphContext, known: Refusal | None = None
) -> Match | Refusal | None:
    """Return the match of `anchor`, one of those for its operator, at `node`, or a refusal that got beyond `known`.

    Without measurements the cost condition refuses too, unless it selects between the kernel and the library's op. A
    false `about` is not a refusal.
    """
    nearness = None if known is None else known.nearness
    return around.equal.find((anchor, nearness), node, lambda: _anchored(graph, anchor, node, around, known))


def _anchored(
    graph: Graph, anchor: Anchor, node: Node, around: GraphContext, known: Refusal | None
) -> Match | Refusal | None:
    cost = () if around.choices is not None else anchor.cost
    if not anchor.kernel:
        return find(graph, anchor.pattern, (*anchor.where, *cost), node, known, anchor.about)
    found = find(graph, anchor.pattern, anchor.where, node, known, anchor.about)
    if not isinstance(found, Match) or _library_can(graph, anchor, found):
        return found
    # The whole pattern matched: no other spelling got further.
    return find(graph, anchor.pattern, (*anchor.where, *anchor.kernel, *cost), node, about=anchor.about)


def _library_can(graph: Graph, anchor: Anchor, match: Match) -> bool:
    """Return whether the library's op can compute the matched anchor."""
    return anchor.realize is not None and all(predicate.holds(p, graph, match) is None for p in anchor.realizable)


def takes(graph: Graph, node: Node, around: GraphContext) -> bool:
    """Return whether some rule's kernel starts at `node` and absorbs its pointwise followers."""
    alone = node in around.alone or node.order < 0 or node.domain == DOMAIN
    return not alone and any(isinstance(anchored(graph, a, node, around), Match) for a in around.heads.get(node.op, ()))


def head_of(graph: Graph, node: Node, around: GraphContext) -> Node | None:
    """Return the node whose kernel absorbs `node`, too: only pointwise work of one shape lies between them."""
    seen, waiting = {node}, [node]
    shape = graph.type(node.outputs[0]).shape
    while waiting:
        for v in waiting.pop().reads:
            maker = graph.producer(v)
            if maker is None or maker in seen or shapes_differ(graph.type(v).shape, shape):
                continue
            if takes(graph, maker, around):
                return maker
            if maker.is_elementwise:
                seen.add(maker)
                waiting.append(maker)
    return None


def _start_from(
    graph: Graph, how: Fuse, anchor: Anchor, match: Match, root: Node, around: GraphContext
) -> Start | Refusal:
    cost = _cost(graph, anchor, match, around)
    matched = tuple(sorted(match.nodes.values(), key=lambda n: n.order))
    if how.wants(Growth.LIBRARY_ANCHOR):
        return Start(root, root.outputs[0], kept=matched, cost=cost)
    bound = bind(anchor.let, graph, match)
    if isinstance(bound, Refusal):
        return bound
    realization, library = None, _library_can(graph, anchor, match)
    if anchor.realize is not None and (library or cuda.reads_library_form(how.template)):
        realization = Realization(realized(anchor.realize, match.pattern), bound)
    seeds = tuple(n for n in matched if n.op != ops.Constant)
    inputs = {name: v for name in anchor.pattern.inputs if isinstance(v := match.values.get(name), str)}
    template = fallback = ""
    if realization is not None and all(step.kind is Growth.CACHES for step in how.steps):
        possible = anchor.kernel and all(predicate.holds(p, graph, match) is None for p in anchor.kernel)
        faster = possible and (around.choices is not None or not cost)
        template = THROUGH_LIBRARY if library and not faster else how.template
        fallback = THROUGH_LIBRARY if library else ""
    told = "" if template == THROUGH_LIBRARY else cost
    return Start(root, root.outputs[0], seeds, (), inputs, realization, template, fallback, told)


def _cost(graph: Graph, anchor: Anchor, match: Match, around: GraphContext) -> str:
    """Return the rule's cost objection to a kernel at this match, empty if none."""
    if around.choices is None and not anchor.kernel:
        return ""  # the match was refused otherwise
    causes = (predicate.holds(p, graph, match) for p in anchor.cost)
    return next((c.text for c in causes if c is not None), "")


def _parts_a_chain(graph: Graph, node: Node, around: GraphContext) -> bool:
    """Return whether pointwise nodes surround a node that launches nothing by itself."""
    before = graph.producer(node.inputs[0])
    beside = [before, *graph.readers(node.outputs[0])] if before is not None else []
    work = [n for n in beside if n is not None and not_pointwise(graph, n, around.host) is None]
    return before in work and len(work) > 1
