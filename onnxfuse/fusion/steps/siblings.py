"""Growth step: absorb anchors that read the same value, so that products of one input share a launch."""

from collections.abc import Collection, Iterator
from itertools import islice

from onnxfuse import cuda, ops
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.attempt import Attempt
from onnxfuse.fusion.steps.start import anchored
from onnxfuse.graph.graph import Node
from onnxfuse.rules.match.equal_attempts import Surroundings
from onnxfuse.rules.match.match import Match
from onnxfuse.shapes.types import Dim, shapes_differ


def take_siblings(attempt: Attempt) -> None:
    """Absorb the other anchors that read the same value, in the graph's order: of equal shape except for their columns.

    If they exceed one launch, only as many join as make equal launches: 12 products of one input become two of six.
    """
    graph, around = attempt.graph, attempt.around
    shared = attempt.input(Growth.SIBLINGS)
    own = graph.type(attempt.start.value).shape
    of_value, key = around.siblings.setdefault(shared, {}), (own, attempt.even)
    chosen = _chosen(attempt, of_value[key]) if key in of_value else None
    # What was fused since may have changed a match: of those that join, they are matched again whose surroundings did.
    if chosen is None or not all(_still_matches(attempt, n, shared, of_value[key][n]) for n in chosen):
        found = (n for n in _candidates(attempt, shared) if _may_join(attempt, n) and _matches(attempt, n, shared))
        of_value[key] = {n: around.equal.state(n) for n in found}
        chosen = _chosen(attempt, of_value[key])
    attempt.region.siblings = tuple(chosen)
    for node in chosen:
        match = _match(attempt, node, shared)
        assert match is not None
        attempt.region.nodes.update((n, None) for n in match.nodes.values() if n.op != ops.Constant)
    works = (graph.type(n.outputs[0]) for n in attempt.region.siblings)
    attempt.region.uneven = tuple(w for w in works if shapes_differ(w.shape, own))


def _candidates(attempt: Attempt, shared: str) -> Iterator[Node]:
    """Return the nodes at which an anchor may match that reads `shared`: its readers, or what reads these."""
    graph, roots = attempt.graph, attempt.how.anchors_at
    for node in graph.readers(shared):
        if node.op in roots:
            yield node
        elif node.is_elementwise:
            yield from (r for r in graph.readers(node.outputs[0]) if r.op in roots)


def _chosen(attempt: Attempt, candidates: Collection[Node]) -> list[Node]:
    """Return the candidates that join: the first ones, as many as make equal launches."""
    left = {attempt.start.root, *attempt.around.alone}
    whole = 1 + len(candidates) - sum(n in candidates for n in left)
    parts = -(-whole // cuda.TEMPLATES[attempt.how.template].beside)
    return list(islice((n for n in candidates if n not in left), -(-whole // parts) - 1))


def _may_join(attempt: Attempt, node: Node) -> bool:
    graph, own = attempt.graph, attempt.graph.type(attempt.start.value).shape
    return node not in attempt.around.alone and _fit(attempt, graph.type(node.outputs[0]).shape, own)


def _still_matches(attempt: Attempt, node: Node, shared: str, before: Surroundings | None) -> bool:
    """Return whether a node that has matched still does; `before` is what it met then."""
    same = before is not None and attempt.around.equal.state(node) is before
    return same or _matches(attempt, node, shared)


def _matches(attempt: Attempt, node: Node, shared: str) -> bool:
    """Return whether a node is an anchor of the rule that reads `shared` as the first one does."""
    return node is attempt.start.root or _match(attempt, node, shared) is not None


def _match(attempt: Attempt, node: Node, shared: str) -> Match | None:
    """Return the match of an anchor that reads `shared` at a node, None if there is none."""
    step = attempt.how.step(Growth.SIBLINGS)
    assert step is not None
    anchors = attempt.how.anchors_at.get(node.op, ())
    matches = (anchored(attempt.graph, a, node, attempt.around) for a in anchors)
    return next((m for m in matches if isinstance(m, Match) and m.values[step.input] == shared), None)


def _fit(attempt: Attempt, shape: tuple[Dim, ...] | None, own: tuple[Dim, ...] | None) -> bool:
    """Return whether an anchor with this output shape can share the launch."""
    if not shapes_differ(shape, own):
        return True
    assert shape is not None
    assert own is not None
    multiple = cuda.TEMPLATES[attempt.how.template].uneven_columns
    if attempt.even or not multiple or len(shape) != len(own) or shapes_differ(shape[:-1], own[:-1]):
        return False
    return all(isinstance(n, int) and n % multiple == 0 for n in (shape[-1], own[-1]))
