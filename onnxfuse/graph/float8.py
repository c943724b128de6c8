"""Products of float8 numbers as rule quantized_product writes them: both factors are written as float32, unchanged.

That of activations by a DequantizeLinear of scale 1, as ONNX Runtime's optimizer moves a Transpose in front of
QuantizeLinear and Cast behind them, and then finds no kernel that transposes float8. That of weights by a Cast, as it
takes the product of two dequantized factors in float32 for one of integers.
"""

import numpy as np
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node

FLOAT8 = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2)
"""Element types of float8 that products multiply."""


def is_float8_matrix(graph: Graph, value: str) -> bool:
    """Return whether a value is a matrix of float8 numbers, or more."""
    type_ = graph.type(value)
    return type_.dtype in FLOAT8 and type_.rank not in (0, 1)


def multiplies_float8(graph: Graph, node: Node) -> bool:
    """Return whether a product multiplies float8 numbers, which are only written as float32."""
    makers = [_before_transpose(graph, v) for v in node.inputs[:2]] if node.op == ops.MatMul and not node.domain else []
    return len(makers) > 1 and all(m is not None and widens_float8(graph, m) for m in makers)


def widens_float8(graph: Graph, node: Node) -> bool:
    """Return whether a node writes a matrix of float8 numbers as float32, without a scale."""
    if node.domain or not node.inputs or not is_float8_matrix(graph, node.inputs[0]):
        return False
    if node.op == ops.Cast:
        return graph.type(node.outputs[0]).dtype == TensorProto.FLOAT
    if node.op != ops.DequantizeLinear:
        return False
    scale = graph.constant(node.inputs[1])
    return scale is not None and scale.dtype == np.float32 and scale.size == 1 and bool((scale == 1).all())


def _before_transpose(graph: Graph, value: str) -> Node | None:
    """Return the producer of a value, or of what a Transpose makes it of: of a weight that is stored [n, k]."""
    node = graph.producer(value)
    return graph.producer(node.inputs[0]) if node is not None and node.op == ops.Transpose and not node.domain else node
