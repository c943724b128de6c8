"""Nodes that combine the results of sibling anchors: a kernel computes few of those in one body."""

from onnxfuse import cuda
from onnxfuse.fusion.region.attempt import Attempt
from onnxfuse.graph.graph import Node


def results_of_anchors(attempt: Attempt) -> dict[str, Node]:
    """Return the anchors by their results, if they are more than those of which a node may combine results; else
    nothing."""
    together = cuda.TEMPLATES[attempt.how.template].together
    anchors = (attempt.start.root, *attempt.region.siblings)
    return {o: n for n in anchors for o in n.outputs if o} if 0 < together < len(anchors) else {}


def combined(results: dict[str, Node], joined: Node) -> str | None:
    """Add what a node of the region computes from an anchor's result to `results`; return why it may not be in it, if
    it combines several."""
    anchors = {results[v] for v in joined.reads if v in results}
    if len(anchors) > 1:
        first, second, *_ = sorted(anchors, key=lambda n: n.order)
        return f"{joined.op} {joined.name} combines {first.op} {first.name} and {second.op} {second.name}"
    results.update((o, anchor) for anchor in anchors for o in joined.outputs)
    return None
