"""Growth step: absorb anchors that read the same value, so that products of one input share a launch."""

from onnxfuse import cuda
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.attempt import Attempt
from onnxfuse.fusion.steps.start import anchored
from onnxfuse.rules.match.match import Match
from onnxfuse.shapes.types import Dim, shapes_differ


def take_siblings(attempt: Attempt) -> None:
    """Absorb the other anchors that read the same value, in the graph's order: of equal shape except for their columns.

    If they exceed one launch, only as many join as make equal launches: 12 products of one input become two of six.
    """
    graph, how, around = attempt.graph, attempt.how, attempt.around
    step, shared = how.step(Growth.SIBLINGS), attempt.input(Growth.SIBLINGS)
    assert step is not None
    found = []
    for node in graph.readers(shared):
        if (
            node is attempt.start.root
            or node.order < 0
            or node in around.alone
            or not _fit(attempt, graph.type(node.outputs[0]).shape, graph.type(attempt.start.value).shape)
        ):
            continue
        matches = (anchored(graph, a, node, around) for a in how.anchors_at.get(node.op, ()))
        if any(isinstance(m, Match) and m.values[step.input] == shared for m in matches):
            found.append(node)
    parts = -(-(1 + len(found)) // cuda.TEMPLATES[how.template].beside)
    most = -(-(1 + len(found)) // parts)
    attempt.region.siblings = tuple(sorted(found, key=lambda n: n.order)[: most - 1])
    attempt.region.nodes.update(dict.fromkeys(attempt.region.siblings))
    own, works = graph.type(attempt.start.value).shape, (graph.type(n.outputs[0]) for n in attempt.region.siblings)
    attempt.region.uneven = tuple(w for w in works if shapes_differ(w.shape, own))


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
