"""Write quantized values in the integer type in which their zero point is 0.

int8 with a zero point of z is uint8 with one of z + 128: the same numbers, each 128 higher. After a Relu tools write
int8 and -128, which is uint8 and 0; of weights they write uint8 and 128, which is int8 and 0. Without a zero point a
product needs no sums of columns, and a convolution pads with what the copy engine fills in.
"""

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.model.derived_names import SHIFTED
from onnxfuse.ops.quantize import INTEGER_RANGES

OTHER: Mapping[int, tuple[int, type[np.integer], int]] = {
    TensorProto.INT8: (-128, np.uint8, 128), TensorProto.UINT8: (128, np.int8, -128),
}  # fmt: skip
"""By type: the zero point that is 0 in the other type of 8 bits, that type, and how much higher its numbers are."""


@graph_pass
def zero_zero_points(graph: Graph) -> bool:
    """Writes quantized values in the 8-bit type in which their zero point is 0."""
    return rewrite_each(graph, {ops.QuantizeLinear: _activation, ops.DequantizeLinear: _weight})


@graph_pass
def written_zero_points(graph: Graph) -> bool:
    """Writes out the zero point of a DequantizeLinear even if it is 0, except for uint8.

    ONNX Runtime moves one of a single scale past a Transpose or a Reshape, and gives the QuantizeLinear that it adds
    there the same inputs. Without a zero point that one gives uint8, so that numbers below 0 become 0, or the session
    is refused (1.31.1 below operator set 21: https://github.com/microsoft/onnxruntime/issues/27845).
    """
    return rewrite_each(graph, {ops.DequantizeLinear: _written})


def _written(node: Node, to: Rewriter) -> bool:
    graph, value = to.graph, node.inputs[0]
    dtype = graph.type(value).dtype
    if any(node.inputs[2:]) or dtype == TensorProto.UINT8 or dtype not in INTEGER_RANGES:
        return False
    if graph.type(node.inputs[1]).rank != 0:
        return False
    zero = np.zeros((), helper.tensor_dtype_to_np_dtype(dtype))
    to.copy(node, {2: to.constant(f"{value}.zero", zero)})
    return True


def _activation(node: Node, to: Rewriter) -> bool:
    graph, value = to.graph, node.outputs[0]
    other = _other(graph, node)
    readers = graph.readers(value)
    if other is None or graph.is_output(value) or not readers:
        return False
    if not all(r.op == ops.DequantizeLinear and not r.domain and _other(graph, r) == other for r in readers):
        return False
    to.old = (node, *readers)
    zero = to.constant(f"{node.inputs[2]}.0", np.zeros(graph.type(node.inputs[2]).static_shape or (), other[0]))
    to.copy(node, {2: zero}, hint=f"{value}{SHIFTED}", output_dtype=None)
    shifted = to.nodes[-1].output[0]
    for reader in readers:
        to.copy(reader, {0: shifted, 2: ""})
    return True


def _weight(node: Node, to: Rewriter) -> bool:
    array, other = to.graph.constant(node.inputs[0]), _other(to.graph, node)
    if array is None or other is None:
        return False
    shifted = (array.astype(np.int16) + other[1]).astype(other[0])
    to.copy(node, {0: to.constant(f"{node.inputs[0]}{SHIFTED}", shifted), 2: ""})
    return True


def _other(graph: Graph, node: Node) -> tuple[type[np.integer], int] | None:
    """Return the type in which the zero point of a node is 0, and how much higher its numbers are; None if there is
    none."""
    zero = graph.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if zero is None or (known := OTHER.get(graph.type(node.inputs[2]).dtype)) is None or not (zero == known[0]).all():
        return None
    return known[1], known[2]
