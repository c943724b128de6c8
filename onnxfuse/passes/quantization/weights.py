"""Quantize at optimize time weights that a file stores as numbers, and dequantize those that no 8-bit kernel takes.

ModelOpt, torch and TensorFlow write QuantizeLinear and DequantizeLinear of floating-point weights. What
QuantizeLinear computes of constants is stored: a quarter of the bytes, and the form that other tools write.

Rules have by now taken the products and convolutions of 8-bit integers. What is left computes with floating-point
numbers: a convolution of few channels, a depthwise one, a product of odd sizes. Its weight is dequantized here once
rather than in every run. Weights beside activations that are not quantized stay as they are: they were stored in few
bits to be small.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.ops import Trait
from onnxfuse.ops.quantize import RANGES

DEFAULT_AXIS = 1
"""The axis along which scales lie if the node does not say."""


FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
"""Element types of numbers that products read."""

FLOAT8: Mapping[int, float] = {TensorProto.FLOAT8E4M3FN: 448.0, TensorProto.FLOAT8E5M2: 57344.0}
"""Largest number of the float8 types to which weights are quantized."""


@graph_pass
def quantize_weights(graph: Graph) -> bool:
    """Stores what QuantizeLinear computes of constant weights."""
    changed = False
    for node in [n for n in graph.nodes if n.op == ops.QuantizeLinear and not n.domain]:
        array = None if graph.is_output(node.outputs[0]) else quantized(graph, node)
        if array is not None:
            graph.replace([node], [])
            graph.add_constant(node.outputs[0], array)
            changed = True
    return changed


def quantized(graph: Graph, node: Node) -> np.ndarray | None:
    """Return what a QuantizeLinear of constants computes; None if they are not known, are no finite numbers, or a scale
    is 0.

    As ONNX Runtime computes it: quotients in float32, rounded to even, and saturated.
    """
    x, scale, *zero = (_numbers(graph, v) for v in node.inputs if v)
    to = graph.type(node.outputs[0]).dtype
    if x is None or scale is None or any(z is None for z in zero) or "precision" in node.written:
        return None
    x, scale = x.astype(np.float32), _for_each_element(node, scale, x.shape).astype(np.float32)
    if not np.isfinite(x).all() or not np.isfinite(scale).all() or not scale.all():
        return None
    with np.errstate(over="ignore"):
        steps = np.asarray(x / scale)
    if to in FLOAT8:
        if not node.written.get("saturate", 1):
            return None
        return np.asarray(steps.clip(-FLOAT8[to], FLOAT8[to]), helper.tensor_dtype_to_np_dtype(to))
    if to not in RANGES:
        return None
    steps = np.rint(steps)
    for offset in zero:
        steps = steps + _for_each_element(node, np.asarray(offset), x.shape)
    return np.asarray(steps.clip(*RANGES[to]), helper.tensor_dtype_to_np_dtype(to))


def _numbers(graph: Graph, value: str) -> np.ndarray | None:
    """Return a constant, also behind a Cast of 16-bit numbers to float32, which changes none."""
    cast = graph.producer(value)
    if cast is None or cast.op != ops.Cast or cast.domain or graph.type(value).dtype != TensorProto.FLOAT:
        return graph.constant(value)
    array = graph.constant(cast.inputs[0]) if graph.type(cast.inputs[0]).dtype in FLOATS else None
    return None if array is None else array.astype(np.float32)


@graph_pass
def dequantize_weights(graph: Graph) -> bool:
    """Dequantizes weights of products that stay floating-point beside quantized activations, and quantized scales."""
    changed = False
    for node in [n for n in graph.nodes if n.op == ops.DequantizeLinear and not n.domain]:
        cast = graph.only_reader(node.outputs[0])
        nodes = [node] if cast is None or cast.op != ops.Cast or cast.domain else [node, cast]
        value = nodes[-1].outputs[0]
        folded = stays_floating_point(graph, node, value) or _are_scales(graph, node, value)
        array = dequantized(graph, node) if folded else None
        if array is not None:
            dtype = helper.tensor_dtype_to_np_dtype(graph.type(value).dtype)
            graph.replace(nodes, [])
            graph.add_constant(value, array.astype(dtype))  # at once: a convolution's layout depends on it
            changed = True
    return changed


def stays_floating_point(graph: Graph, node: Node, value: str) -> bool:
    """Return whether a node dequantizes a weight for products and convolutions of quantized activations alone, which
    read it as `value`."""
    readers = graph.readers(value)
    if not all(map(graph.is_constant, filter(None, node.inputs))) or graph.is_output(value) or not readers:
        return False
    return all(r.has(Trait.CONTRACTION) and _reads_quantized(graph, r, value) for r in readers)


def _are_scales(graph: Graph, node: Node, value: str) -> bool:
    """Return whether a node dequantizes constant scales of weights, as of float4 blocks: one for each of them."""
    readers = graph.readers(value)
    constant = all(map(graph.is_constant, filter(None, node.inputs))) and not graph.is_output(value)
    return constant and bool(readers) and all(r.op == ops.DequantizeLinear and r.inputs[1] == value for r in readers)


def dequantizing(graph: Graph, value: str) -> list[Node]:
    """Return the DequantizeLinear that computes a value, with the Cast behind it if there is one: models of 16 bits
    have one before operator set 19. Empty if something else computes it."""
    node, behind = graph.producer(value), list[Node]()
    if node is not None and node.op == ops.Cast and not node.domain:
        behind.append(node)
        node = graph.producer(node.inputs[0])
    if node is None or node.op != ops.DequantizeLinear or node.domain:
        return []
    return [node, *behind] if all(graph.type(n.outputs[0]).dtype in FLOATS for n in behind) else []


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
    return any(dequantizing(graph, v) for v in node.inputs if v and v != weight)
