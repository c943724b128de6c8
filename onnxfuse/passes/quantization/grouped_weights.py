"""Write weights that are stored as a row for each group of terms in the shape in which products read them.

Some tools reshape a weight [n, k] to [n k / group, group], quantize it with a scale for each row, and reshape what
DequantizeLinear computes. The same numbers, in blocks along the second axis, need no Reshape before a product.
"""

import numpy as np

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.model import schema

BLOCK_SIZE = "block_size"
"""The attribute of a DequantizeLinear with scales for blocks, from operator set 21 on."""


@graph_pass
def grouped_weights(graph: Graph) -> bool:
    """Dequantizes a weight with a scale for each group of terms in the shape in which it is read."""
    return rewrite_each(graph, {ops.Reshape: _in_blocks})


def _in_blocks(node: Node, to: Rewriter) -> bool:
    graph = to.graph
    dequantize, shape = graph.producer(node.inputs[0]), graph.type(node.outputs[0]).static_shape
    if dequantize is None or dequantize.op != ops.DequantizeLinear or dequantize.domain or shape is None:
        return False
    arrays = [graph.constant(v) for v in dequantize.inputs if v]
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays) or len(shape) != 2 or not _has_a_scale_for_each_row(graph, dequantize, known):
        return False
    group, known_schema = known[0].shape[1], schema.find(ops.DequantizeLinear, "", graph.opset)
    if shape[1] % group or known_schema is None or BLOCK_SIZE not in known_schema.attributes:
        return False
    blocks = (shape[0], shape[1] // group)
    reads = [
        to.constant(f"{v}.blocks", array.reshape(shape if i == 0 else blocks))
        for i, (v, array) in enumerate(zip(filter(None, dequantize.inputs), known, strict=True))
    ]
    to.copy(dequantize, reads, output=node.outputs[0], name=node.name, axis=1, block_size=group)
    return True


def _has_a_scale_for_each_row(graph: Graph, node: Node, arrays: list[np.ndarray]) -> bool:
    number, scale = arrays[:2]
    if number.ndim != 2 or scale.size != number.shape[0] or scale.size == 1:
        return False
    axis, block = (graph.attributes(node).get(name, 0) for name in ("axis", BLOCK_SIZE))
    return (axis, scale.ndim) == (0, 1) or (axis in (1, -1) and scale.ndim == 2 and block == number.shape[1])
