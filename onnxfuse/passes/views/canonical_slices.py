"""Canonicalize Slices: drop steps of 1, so that rules match one spelling."""

from onnxfuse.graph.graph import Graph
from onnxfuse.graph.rewriter import substitute

STEPS = 4
"""Input index of a Slice's steps, its last input."""


def canonical_slices(graph: Graph) -> bool:
    """Drop steps of 1; return whether there were any."""
    changed = False
    for node in [n for n in graph.nodes if n.op == "Slice" and not n.domain]:
        steps = graph.constant(node.inputs[STEPS]) if len(node.inputs) > STEPS else None
        if steps is None or not (steps == 1).all():
            continue
        substitute(graph, node, node.inputs[:STEPS])
        changed = True
    return changed
