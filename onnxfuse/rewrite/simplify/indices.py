"""Are indices the places of what they index, in their order?

Proven from their numbers, or from the Range, the products and the sums that compute them: x[arange(n)] is x.
"""

from collections.abc import Sequence

import numpy as np
import onnx

from onnxfuse.model.extents import Shape
from onnxfuse.model.graph import Graph, Node

DEPTH = 20
"""Nodes between indices and what they count; exporters write two for each axis."""

LARGEST = 1 << 20
"""Elements of a constant that is looked at."""

WHOLE = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)

_Strides = tuple[int, ...] | None
"""What an element grows by along each axis, from 0 for the first; 0 along an axis of one place."""


def in_order(graph: Graph, value: str) -> bool:
    """Return whether the elements of `value` are known to be 0, 1, 2 and so on, as they lie in memory."""
    shape, strides = graph.type(value).shape, _strides(graph, value, DEPTH)
    if shape is None or strides is None or len(strides) != len(shape):
        return False
    step: int | None = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if step is None or stride != step:  # an open extent may be the first one alone
            return False
        step = step * extent if isinstance(extent, int) else None
    return True


def _strides(graph: Graph, value: str, depth: int) -> _Strides:
    if graph.is_constant(value):
        return _of_constant(graph, value)
    node = graph.producer(value)
    if node is None or node.domain or depth == 0 or graph.type(value).dtype not in WHOLE:
        return None
    if node.op == "Range":
        start, step = (graph.constant(node.inputs[i]) for i in (0, 2))
        return (int(step.reshape(-1)[0]),) if start is not None and step is not None and not start.any() else None
    if node.op not in _OPERANDS:
        return None
    given: list[_Strides] = []
    for operand in node.inputs[: _OPERANDS[node.op]]:
        factor = graph.constant(operand) if node.op == "Mul" and given else None
        if factor is not None and factor.size == 1 and given[0] is not None:
            return tuple(s * int(factor.reshape(-1)[0]) for s in given[0])
        given.append(_strides(graph, operand, depth - 1))
    if node.op == "Unsqueeze":
        return _unsqueezed(graph, node, given[0])
    return None if node.op == "Mul" else _summed(graph, node, given)


_OPERANDS = {"Add": 2, "Mul": 2, "Cast": 1, "Identity": 1, "Expand": 1, "Unsqueeze": 1}
"""How many inputs are indices, or a factor of them."""


def _of_constant(graph: Graph, value: str) -> _Strides:
    array = graph.constant(value) if graph.type(value).dtype in WHOLE else None
    if array is None or not 0 < array.size <= LARGEST:
        return None
    ends = [tuple(int(a == axis) for a in range(array.ndim)) for axis in range(array.ndim)]
    strides = tuple(int(array[end]) if n > 1 else 0 for end, n in zip(ends, array.shape, strict=True))
    grid = [np.arange(n).reshape(-1, *(1,) * (array.ndim - 1 - axis)) for axis, n in enumerate(array.shape)]
    line = sum((s * g for s, g in zip(strides, grid, strict=True)), np.zeros((), np.int64))
    return strides if (array == line).all() else None


def _unsqueezed(graph: Graph, node: Node, inner: _Strides) -> _Strides:
    axes = graph.attributes(node).get("axes") or (graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None)
    if inner is None or axes is None:
        return None
    places = np.asarray(axes).reshape(-1)
    rank, rest = len(inner) + places.size, iter(inner)
    new = {int(a) % rank for a in places}
    return tuple(0 if axis in new else next(rest) for axis in range(rank))


def _summed(graph: Graph, node: Node, given: Sequence[_Strides]) -> _Strides:
    """Operands that are broadcast against one another: one grows along an axis only where it has the whole of it."""
    whole = graph.type(node.outputs[0]).shape
    if whole is None:
        return None
    total = [0] * len(whole)
    for operand, strides in zip(node.inputs, given, strict=False):
        own: Shape = graph.type(operand).shape
        if strides is None or own is None or len(own) != len(strides) or len(own) > len(whole):
            return None
        for axis, stride in enumerate(strides, len(whole) - len(own)):
            extent = own[axis - len(whole)]
            if stride and extent != 1 and (extent is None or extent != whole[axis]):
                return None
            total[axis] += 0 if extent == 1 else stride
    return tuple(total)
