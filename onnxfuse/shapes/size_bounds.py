"""Bound the size of a result before computing it: a file of 200 bytes can request terabytes.

A value's declared shape is not trusted: sizes are computed from the operator's inputs.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto

from onnxfuse import ops
from onnxfuse.ops import Trait, named

MOST_MULTIPLIED = 1 << 26
"""Maximum multiplications: half a second of NumPy's time."""

MOST_IN_A_PRODUCT = 1 << 33
"""Maximum multiplications of a matrix product by BLAS: the same time."""


def result_elements(node: NodeProto, inputs: Mapping[str, np.ndarray]) -> int | None:
    """Return an upper bound of the elements that `node` computes from `inputs`; None if unsupported, or slow.

    For values outside the operator's domain any number: computing it raises.
    """
    try:
        return _elements(node, inputs)
    except (IndexError, ValueError):  # a required input is missing
        return 0


def _elements(node: NodeProto, inputs: Mapping[str, np.ndarray]) -> int | None:
    arrays = [inputs[v] for v in node.input if v]
    attributes = {a.name: a for a in node.attribute}
    match node.op_type:
        case ops.Constant | ops.Shape | ops.Size:
            return 1
        case ops.ConstantOfShape:
            return _product(arrays[0])
        case ops.Expand:
            return _broadcast([arrays[0].shape, tuple(map(int, arrays[1].reshape(-1)))])
        case ops.Tile:
            return arrays[0].size * _product(arrays[1])
        case ops.Range:
            start, limit, step = (float(a.reshape(-1)[0]) if a.size else 0.0 for a in arrays)
            steps = (limit - start) / step if step else 0.0
            return max(0, math.ceil(steps)) if math.isfinite(steps) else None
        case ops.Concat:
            return sum(a.size for a in arrays)
        case ops.Gather:
            data, indices = arrays
            axis = attributes["axis"].i if "axis" in attributes else 0
            inside = -data.ndim <= axis < data.ndim
            return (
                indices.size * math.prod(e for i, e in enumerate(data.shape) if i != axis % data.ndim) if inside else 0
            )
        case ops.Einsum:
            return _summed(attributes["equation"].s.decode(), arrays) if "equation" in attributes else 0
        case ops.MatMul:
            return _multiplied(*(a.shape for a in arrays))
        case ops.Gemm:
            a, b = (
                array.T.shape if attributes.get(name) and attributes[name].i else array.shape
                for name, array in zip(("transA", "transB"), arrays, strict=False)
            )
            return _multiplied(a, b)
        case op if op in _NO_LARGER:
            return arrays[0].size
        case op if op in _BROADCAST:
            return _broadcast([a.shape for a in arrays])
    return None


_NO_LARGER = named(Trait.KEEPS_SHAPE, Trait.VIEW, Trait.REDUCTION) | {ops.Transpose, ops.Slice, ops.Split}

_BROADCAST = named(Trait.BROADCASTS)


def _summed(equation: str, arrays: Sequence[np.ndarray]) -> int | None:
    """Return the elements of an Einsum; None if it would take long, or has an ellipsis."""
    written, _, result = equation.replace(" ", "").partition("->")
    extents: dict[str, int] = {}
    for term, array in zip(written.split(","), arrays, strict=True):
        extents.update(zip(term, array.shape, strict=True))
    if "." in written or not result or math.prod(extents.values()) > MOST_MULTIPLIED:
        return None
    return math.prod(extents.get(a, 1) for a in result)


def _multiplied(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the elements of a matrix product; None if it would take long."""
    rows, columns = (1, *a)[-2:], (*b, 1)[-2:] if len(b) == 1 else b[-2:]
    elements = _broadcast([a[:-2], b[:-2]]) * rows[0] * columns[-1]
    return elements if elements * rows[-1] <= MOST_IN_A_PRODUCT else None


def _product(sizes: np.ndarray) -> int:
    return math.prod(int(e) for e in sizes.reshape(-1))


def _broadcast(shapes: Sequence[Sequence[int]]) -> int:
    """Return the elements of the shapes broadcast together; for incompatible ones an upper bound."""
    rank = max((len(s) for s in shapes), default=0)
    full = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return math.prod(max(column) if 0 not in column else 0 for column in zip(*full, strict=True))
