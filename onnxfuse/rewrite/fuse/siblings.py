"""Let a region take in the anchors that read the same value: products of one input in one launch."""

from onnxfuse import kernels
from onnxfuse.kernels import Growth
from onnxfuse.model.types import shapes_differ
from onnxfuse.rewrite.fuse.attempt import Attempt
from onnxfuse.rewrite.fuse.start import anchored
from onnxfuse.rewrite.match.match import Match


def take_siblings(attempt: Attempt) -> None:
    """Add the other anchors of the same shape that read the same value, in the graph's order.

    Of more than one launch is meant for, as many as make equal launches: 12 products of one input are two of six.
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
            or shapes_differ(graph.type(node.outputs[0]).shape, graph.type(attempt.start.value).shape)
        ):
            continue
        matches = (anchored(graph, a, node, around) for a in how.anchors_at.get(node.op, ()))
        if any(isinstance(m, Match) and m.values[step.input] == shared for m in matches):
            found.append(node)
    parts = -(-(1 + len(found)) // kernels.TEMPLATES[how.template].beside)
    most = -(-(1 + len(found)) // parts)
    attempt.region.siblings = tuple(sorted(found, key=lambda n: n.order)[: most - 1])
    attempt.region.nodes.update(dict.fromkeys(attempt.region.siblings))
