"""Elementwise nodes that compute the same of the same value are one before kernels grow.

An exporter writes a Cast for each reader, and an Unsqueeze before it. What moves data, or calls it another shape, stays
each reader's own: where layouts meet, or heads begin, a kernel takes it in.
"""

from onnxfuse import kernels
from onnxfuse.model.fold import share_equal
from onnxfuse.model.graph import Graph, Node

AXES = frozenset({"Squeeze", "Unsqueeze"})


def share_elementwise(graph: Graph) -> None:
    """Compute once what several such nodes compute."""
    if share_equal(graph, _is_elementwise):
        graph.remove_dead()


def _is_elementwise(node: Node) -> bool:
    return kernels.is_pointwise(node.op, node.domain) or (not node.domain and node.op in AXES)
