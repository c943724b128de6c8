"""Fold weight standardization, computed from the weights' own statistics in every run, into the weights.

BiT and NFNet express weight standardization as a BatchNormalization in training mode over the weights of each
convolution. ONNX Runtime 1.31 has no CUDA kernel for that from operator set 14 on: such a model as exported does not
load there.
"""

import numpy as np

from onnxfuse import ops
from onnxfuse.graph.constant_folding import SMALL, frees
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass

SINCE = 14
"""First operator set with the attribute `training_mode`, which requests batch statistics."""


@graph_pass
def standardize_weights(graph: Graph) -> bool:
    """Folds the standardization of weights by their own statistics."""
    changed = False
    for node in [n for n in graph.nodes if n.op == ops.BatchNormalization and not n.domain and graph.opset >= SINCE]:
        weights = _standardized(graph, node) if graph.attributes(node)["training_mode"] else None
        if weights is not None:
            graph.replace([node], [])
            graph.add_constant(node.outputs[0], weights)
            changed = True
    return changed


def _standardized(graph: Graph, node: Node) -> np.ndarray | None:
    """Return a node's first output, computed in float64; None if other outputs are read, or an input is unknown."""
    output, *statistics = node.outputs
    if graph.is_output(output) or any(v and (graph.is_output(v) or graph.readers(v)) for v in statistics):
        return None
    x, scale, bias = (graph.constant(v) for v in node.inputs[:3])
    if x is None or scale is None or bias is None or x.ndim < 2 or not x.size:
        return None
    if x.nbytes > SMALL and not frees(graph, node, x.nbytes):
        return None
    wide, around = x.astype(np.float64), tuple(a for a in range(x.ndim) if a != 1)
    each = (-1, *(1,) * (x.ndim - 2))
    centred = wide - wide.mean(around, keepdims=True)
    deviation = np.sqrt((centred**2).mean(around, keepdims=True) + float(str(graph.attributes(node)["epsilon"])))
    scaled = centred / deviation * scale.astype(np.float64).reshape(each) + bias.astype(np.float64).reshape(each)
    return np.asarray(scaled.astype(x.dtype))
