"""Prove that an index tensor is the identity: x[arange(n)] is x.

Proven from constant values, or from the Range, Mul and Add nodes that compute the indices. The step along an axis is an
integer expression in extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

import numpy as np
import onnx

from onnxfuse import ops
from onnxfuse.graph.facts.masks import extent_of, unsqueezed_axes
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.ops import Trait
from onnxfuse.shapes.extents import computed
from onnxfuse.shapes.types import Dim, Shape, is_unknown
from onnxfuse.symbolic.integer import IntLike

DEPTH = 20
"""Maximum nodes between indices and the Range that they derive from; exporters write two per axis."""

LARGEST = 1 << 20
"""Maximum elements of a constant to inspect."""

WHOLE = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


_Strides = tuple[IntLike, ...] | None
"""Increment of the elements along each axis, from 0 for the first; 0 along a unit axis."""


def in_order(graph: Graph, value: str) -> bool:
    """Return whether the elements of `value` are known to be 0, 1, 2, ... in memory order."""
    shape, strides = graph.type(value).shape, _strides(graph, value, DEPTH)
    if shape is None or strides is None or len(strides) != len(shape):
        return False
    step: Dim = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if step is None or stride != step:  # at most the first extent may be unknown
            return False
        step = None if is_unknown(extent) else computed(mul, step, extent)
    return True


def _strides(graph: Graph, value: str, depth: int) -> _Strides:
    if graph.is_constant(value):
        return _of_constant(graph, value)
    node = graph.producer(value)
    if node is None or node.domain or depth == 0 or graph.type(value).dtype not in WHOLE:
        return None
    if node.op == ops.Range:
        start, step = (graph.constant(node.inputs[i]) for i in (0, 2))
        if start is None or step is None or start.any():
            return None
        return (int(step.reshape(-1)[0]),)
    if node.op == ops.Mul:
        return _multiplied(graph, node, depth)
    if node.op == ops.Unsqueeze:
        return _unsqueezed(graph, node, _strides(graph, node.inputs[0], depth - 1))
    if node.op == ops.Add:
        return _summed(graph, node, [_strides(graph, operand, depth - 1) for operand in node.inputs])
    if node.op == ops.Cast or node.has(Trait.EXPANDS):
        return _summed(graph, node, [_strides(graph, node.inputs[0], depth - 1)])
    return None


def _multiplied(graph: Graph, node: Node, depth: int) -> _Strides:
    """Return the strides of indices times a scalar."""
    indices, number = node.inputs
    factor = _number(graph, number)
    if factor is None:
        indices, factor = number, _number(graph, indices)
    shape, rank = graph.type(indices).shape, graph.type(node.outputs[0]).rank
    given = _strides(graph, indices, depth - 1) if factor is not None and shape and len(shape) == rank else None
    return None if given is None or factor is None else tuple(stride * factor for stride in given)


def _number(graph: Graph, value: str) -> Dim:
    """Return a scalar's value, a known integer or an extent."""
    if graph.is_constant(value):
        array = graph.constant(value)
        return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None
    shape, extent = graph.type(value).shape, extent_of(graph, value)
    return extent if shape is not None and set(shape) <= {1} and not is_unknown(extent) else None


def _of_constant(graph: Graph, value: str) -> _Strides:
    array = graph.constant(value) if graph.type(value).dtype in WHOLE else None
    if array is None or not 0 < array.size <= LARGEST:
        return None
    strides = growth(array)
    return strides if strides is not None and not array.reshape(-1)[0] else None


def growth(array: np.ndarray) -> tuple[int, ...] | None:
    """Return the strides of a value's elements along each axis; None if they are not affine."""
    first = int(array.reshape(-1)[0])
    ends = [tuple(int(a == axis) for a in range(array.ndim)) for axis in range(array.ndim)]
    strides = tuple(int(array[end]) - first if n > 1 else 0 for end, n in zip(ends, array.shape, strict=True))
    grid = [np.arange(n).reshape(-1, *(1,) * (array.ndim - 1 - axis)) for axis, n in enumerate(array.shape)]
    line = sum((s * g for s, g in zip(strides, grid, strict=True)), np.full((), first, np.int64))
    return strides if (array == line).all() else None


def _unsqueezed(graph: Graph, node: Node, inner: _Strides) -> _Strides:
    axes = None if inner is None else unsqueezed_axes(graph, node, len(inner))
    if inner is None or axes is None:
        return None
    return tuple(0 if axis is None else inner[axis] for axis in axes)


def _summed(graph: Graph, node: Node, given: Sequence[_Strides]) -> _Strides:
    """A sum of broadcast operands: one increases along an axis only if it has the axis's full extent."""
    result = graph.type(node.outputs[0]).shape
    if result is None:
        return None
    total: list[IntLike] = [0] * len(result)
    for operand, strides in zip(node.inputs, given, strict=False):
        own: Shape = graph.type(operand).shape
        if strides is None or own is None or len(own) != len(strides) or len(own) > len(result):
            return None
        for axis, stride in enumerate(strides, len(result) - len(own)):
            extent = own[axis - len(result)]
            if extent == 1:
                continue
            if stride != 0 and (extent is None or extent != result[axis]):
                return None
            total[axis] = total[axis] + stride
    return tuple(total)
