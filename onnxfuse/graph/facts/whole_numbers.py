"""Values whose elements are known to be whole numbers, in whatever element type they are.

A product of such factors is exact as long as its sums fit into the mantissa; with scaled factors each term is rounded.
"""

import numpy as np
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.ops import Trait
from onnxfuse.ops.quantize import INTEGER_RANGES

DEPTH = 20
"""Nodes that are followed from a value to where its numbers come from."""


def is_whole(graph: Graph, value: str, depth: int = DEPTH) -> bool:
    """Return whether every element of a value is known to be a whole number."""
    if graph.type(value).dtype in {*INTEGER_RANGES, TensorProto.INT64, TensorProto.UINT64, TensorProto.BOOL}:
        return True
    if graph.is_constant(value):
        array = graph.constant(value)
        return array is not None and array.dtype.kind in "fV" and _are_whole(array.astype(np.float64))
    node = graph.producer(value)
    return node is not None and depth > 0 and all(is_whole(graph, v, depth - 1) for v in _sources(node))


def _are_whole(numbers: np.ndarray) -> bool:
    return bool((np.isfinite(numbers) & (np.rint(numbers) == numbers)).all())


def _sources(node: Node) -> list[str]:
    """Return values of which whole numbers make the node's result whole; one without a name, which is not, if there are
    none."""
    entry = ops.operator(node.op, node.domain)
    if entry is None:
        return [""]
    if Trait.CASTS in entry.traits:
        return [node.inputs[0]]
    if entry == ops.DequantizeLinear:
        return list(node.inputs[:2])  # a difference of integers times a scale
    return [v for i, v in enumerate(node.inputs) if entry.carries(i)] or [""]
