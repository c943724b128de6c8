"""Common subexpression elimination: extents and positions from the start, other elementwise nodes later.

Elementwise nodes are merged before kernels grow: an exporter writes a Cast for each reader, and an Unsqueeze before it.
Nodes that move data or reshape it stay duplicated for each reader: a kernel absorbs its own copy where layouts change
or attention heads begin.
"""

from collections.abc import Callable

from onnx import TensorProto

from onnxfuse import cuda, ops
from onnxfuse.graph.constant_folding import common_subexpressions
from onnxfuse.graph.graph import Graph, Node

AXES = frozenset({ops.Squeeze, ops.Unsqueeze})


def common_position_subexpressions(graph: Graph) -> bool:
    """Merge equal computations of extents and positions, which lets further values be recognized as equal."""
    return common_subexpressions(graph, lambda node: graph.type(node.outputs[0]).dtype == TensorProto.INT64)


def common_elementwise_subexpressions(graph: Graph) -> bool:
    """Merge equal elementwise nodes; return whether there were any."""
    return _merged(graph, _is_elementwise)


def all_common_subexpressions(graph: Graph) -> bool:
    """Merge equal nodes of every kind; return whether there were any."""
    return _merged(graph, lambda node: True)


def _merged(graph: Graph, among: Callable[[Node], bool]) -> bool:
    changed = common_subexpressions(graph, among)
    if changed:
        graph.eliminate_dead_code()
    return changed


def _is_elementwise(node: Node) -> bool:
    return cuda.is_pointwise(node.op, node.domain) or (not node.domain and node.op in AXES)
