"""Rewrite ONNX Runtime's SimplifiedLayerNormalization as the RMS norm that rules match.

ONNX Runtime's own tools write it, in the default domain; ONNX has RMSNormalization only since operator set 23.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.model import schema
from onnxfuse.shapes.types import ValueType

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@graph_pass
def expand_simplified_norms(graph: Graph) -> bool:
    """Rewrites ONNX Runtime's SimplifiedLayerNormalization as the RMS norm that rules match."""
    return rewrite_each(graph, {ops.SimplifiedLayerNormalization: _written})


def _written(node: Node, to: Rewriter) -> bool:
    if len(node.inputs) != 2 or any(node.outputs[1:]):
        return False
    x, scale = (to.graph.type(v) for v in node.inputs)
    attributes: Mapping[str, Any] = node.written
    rank, axis = x.rank, attributes.get("axis", -1)
    known = x.dtype == scale.dtype and x.dtype in (*HALF, TensorProto.FLOAT)
    if rank is None or not known or axis not in (-1, rank - 1) or attributes.get("stash_type", 1) != TensorProto.FLOAT:
        return False
    epsilon = float(attributes.get("epsilon", 1e-5))
    if schema.find(ops.RMSNormalization, "", to.graph.opset) is not None:
        to.add(ops.RMSNormalization, *node.inputs, output=node.outputs, axis=-1, epsilon=epsilon)
    else:
        _spell_out(node, x, epsilon, to)
    return True


def _spell_out(node: Node, x: ValueType, epsilon: float, to: Rewriter) -> None:
    """Compute x / sqrt(mean(x * x) + epsilon) * scale, in float32 except for the last product."""
    half, base = x.dtype in HALF, node.outputs[0]
    wide, narrow = ValueType(TensorProto.FLOAT, x.shape), ValueType(TensorProto.FLOAT, (*(x.shape or ())[:-1], 1))
    two, least = (to.constant(f"{base}.{n}", np.array(x, np.float32)) for n, x in (("two", 2), ("epsilon", epsilon)))
    source = to.add(ops.Cast, node.inputs[0], type_=wide, to=TensorProto.FLOAT) if half else node.inputs[0]
    square = to.add(ops.Pow, source, two, type_=wide)
    mean = to.add(ops.ReduceMean, square, axes=[-1], keepdims=1, type_=narrow)
    root = to.add(ops.Sqrt, to.add(ops.Add, mean, least, type_=narrow), type_=narrow)
    normed = to.add(ops.Div, source, root, type_=wide)
    normed = to.add(ops.Cast, normed, type_=x, to=x.dtype) if half else normed
    to.add(ops.Mul, normed, node.inputs[1], output=node.outputs)
