"""Dequantize at optimize time the weights of what no 8-bit kernel computes.

Rules have by now taken the products and convolutions of 8-bit integers. What is left computes with floating-point
numbers: a convolution of few channels, a depthwise one, a product of odd sizes. Its weight is dequantized here once
rather than in every run. Weights beside activations that are not quantized stay as they are: they were stored in few
bits to be small.
"""

from collections.abc import Sequence

import numpy as np
from onnx import helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.ops import Trait

DEFAULT_AXIS = 1
"""The axis along which scales lie if the node does not say."""


@graph_pass
def dequantize_weights(graph: Graph) -> bool:
    """Dequantizes the weights of products and convolutions that stay floating-point, beside quantized activations."""
    changed = False
    for node in [n for n in graph.nodes if n.op == ops.DequantizeLinear and not n.domain]:
        array = dequantized(graph, node) if _stays_floating_point(graph, node) else None
        if array is not None:
            graph.replace([node], [])
            graph.add_constant(node.outputs[0], array)  # at once: a convolution's layout depends on it
            changed = True
    return changed


def _stays_floating_point(graph: Graph, node: Node) -> bool:
    """Return whether a node dequantizes a weight for products and convolutions of quantized activations alone."""
    value = node.outputs[0]
    readers = graph.readers(value)
    if not all(map(graph.is_constant, filter(None, node.inputs))) or graph.is_output(value) or not readers:
        return False
    return all(r.has(Trait.CONTRACTION) and _reads_quantized(graph, r, value) for r in readers)


def dequantized(graph: Graph, node: Node) -> np.ndarray | None:
    """Return what a DequantizeLinear of constants computes, None if they are not known.

    Scales and zero points are scalars, lie along the axis, or are those of the blocks of it.
    """
    x, scale, *zero = (graph.constant(v) for v in node.inputs if v)
    dtype = graph.type(node.outputs[0]).dtype
    if x is None or scale is None or any(z is None for z in zero) or not dtype:
        return None
    numbers: np.ndarray = x.astype(np.float64)
    for offset in zero:
        numbers = numbers - _for_each_element(node, np.asarray(offset), x.shape)
    numbers = numbers * _for_each_element(node, scale, x.shape)
    return np.asarray(numbers, helper.tensor_dtype_to_np_dtype(dtype))


def _for_each_element(node: Node, parameters: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return scales or zero points such that they broadcast to the elements of `shape`."""
    parameters = parameters.astype(np.float64)
    if parameters.size == 1:
        return parameters.reshape(())
    axis, block = node.written.get("axis", DEFAULT_AXIS), node.written.get("block_size", 0)
    assert isinstance(axis, int)
    assert isinstance(block, int)
    axis %= len(shape)
    if block:
        return np.repeat(parameters, block, axis)[tuple(map(slice, shape))]
    return parameters.reshape([-1 if i == axis else 1 for i in range(len(shape))])


def _reads_quantized(graph: Graph, node: Node, weight: str) -> bool:
    """Return whether another operand of a node is dequantized, too."""
    others = [graph.producer(v) for v in node.inputs if v and v != weight]
    return any(n is not None and n.op == ops.DequantizeLinear and not n.domain for n in others)
