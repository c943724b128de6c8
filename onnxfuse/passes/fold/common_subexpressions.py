"""Common subexpression elimination: extents and positions from the start, other elementwise nodes later.

Elementwise nodes are merged before kernels grow: an exporter writes a Cast for each reader, and an Unsqueeze before it.
Nodes that move data or reshape it stay duplicated for each reader: a kernel absorbs its own copy where layouts change
or attention heads begin.
"""

from collections.abc import Callable

from onnx import TensorProto

from onnxfuse.graph.constant_folding import common_subexpressions as merge_equal
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.ops import Trait


@graph_pass
def common_position_subexpressions(graph: Graph) -> bool:
    """Merges nodes that compute the same extents and positions."""
    return merge_equal(graph, lambda node: graph.type(node.outputs[0]).dtype == TensorProto.INT64)


@graph_pass
def common_elementwise_subexpressions(graph: Graph) -> bool:
    """Merges equal elementwise nodes before kernels grow."""
    return _merged(graph, _is_elementwise)


@graph_pass
def common_subexpressions(graph: Graph) -> bool:
    """Merges equal nodes: the same operator and attributes on the same inputs."""
    return _merged(graph, lambda node: True)


def _merged(graph: Graph, among: Callable[[Node], bool]) -> bool:
    changed = merge_equal(graph, among)
    if changed:
        graph.eliminate_dead_code()
    return changed


def _is_elementwise(node: Node) -> bool:
    """Return whether equal nodes are merged; each reader of quantized values dequantizes them for itself."""
    return (node.is_elementwise and not node.has(Trait.QUANTIZES)) or node.has(Trait.UNIT_AXES)
