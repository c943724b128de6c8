"""Let what reads an output of the kernel become one more output of it."""

from onnxfuse.kernels import Growth
from onnxfuse.rewrite.fuse.attempt import Attempt
from onnxfuse.rewrite.match.match import Match
from onnxfuse.rewrite.simplify.rewrite import find


def offer_endings(attempt: Attempt) -> None:
    """Offer the nodes that make one more output of one that the kernel has: the first of the rule's endings there.

    # Conv -> ReduceMean: the mean of images as they are written
    """
    graph, step = attempt.graph, attempt.how.step(Growth.EXTRA_OUTPUTS)
    assert step is not None
    for value in graph.outputs_of(attempt.nodes):
        for reader in graph.readers(value):
            for ending in (e for e in step.endings if reader.op in e.pattern.root.operators):
                found = find(graph, ending.pattern, ending.where, reader)
                if isinstance(found, Match) and found.values[ending.pattern.inputs[0]] == value:
                    attempt.extra = tuple(n for n in found.nodes.values() if n.op != "Constant")
                    return
