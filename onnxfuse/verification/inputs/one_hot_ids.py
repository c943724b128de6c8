"""Detect ids that are one-hot encoded by comparison: Equal of an input with 0, 1, 2, ..., as JAX and TensorFlow export
it.

The result is multiplied by a table, so the input indexes its rows as the input of a Gather does.
"""

import math

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.model.nested import nodes_of
from onnxfuse.ops import Trait, named

MOST = 1 << 24
"""Largest constant that is examined, in elements."""

CARRIERS = named(Trait.KEEPS_ELEMENTS, Trait.CASTS)
"""Operators that preserve the values of a range in another shape."""

Ranges = dict[str, tuple[int, int]]
"""By value: the first integer of a range, and its end (exclusive)."""


def ranges(model: onnx.ModelProto) -> Ranges:
    """Return the values that hold consecutive integers along one axis and are constant along the others."""
    ranges_by_value: Ranges = {}
    scalars: dict[str, float] = {}
    for tensor in model.graph.initializer:
        _note(tensor.name, tensor, ranges_by_value, scalars)
    for node in (n for holder in (model.graph, *model.functions) for n in nodes_of(holder)):
        _add(node, ranges_by_value, scalars)
    return ranges_by_value


def _add(node: NodeProto, ranges_by_value: Ranges, scalars: dict[str, float]) -> None:
    if node.op_type == ops.Constant:
        for attribute in node.attribute:
            if attribute.name == "value":
                _note(node.output[0], attribute.t, ranges_by_value, scalars)
            elif attribute.name in ("value_int", "value_float", "value_ints", "value_floats"):
                _note_array(
                    node.output[0], np.asarray(onnx.helper.get_attribute_value(attribute)), ranges_by_value, scalars
                )
    elif node.op_type == ops.Range and all(name in scalars for name in node.input):
        start, limit, step = (scalars[name] for name in node.input)
        if step == 1 and start == int(start) and limit > start + 1:
            ranges_by_value[node.output[0]] = (int(start), math.ceil(limit))
    elif node.op_type in CARRIERS and node.input[0] in ranges_by_value:
        ranges_by_value[node.output[0]] = ranges_by_value[node.input[0]]
    elif node.op_type in CARRIERS and node.input[0] in scalars:
        scalars[node.output[0]] = scalars[node.input[0]]


def _note(name: str, tensor: TensorProto, ranges_by_value: Ranges, scalars: dict[str, float]) -> None:
    outside = tensor.data_location == TensorProto.EXTERNAL
    if not outside and tensor.data_type != TensorProto.STRING and math.prod(tensor.dims) <= MOST:
        _note_array(name, numpy_helper.to_array(tensor), ranges_by_value, scalars)


def _note_array(name: str, array: npt.NDArray[np.generic], ranges_by_value: Ranges, scalars: dict[str, float]) -> None:
    if array.dtype.kind not in "iuf" or not array.size:
        return
    if array.size == 1:
        scalars[name] = float(array.reshape(-1)[0])
        return
    for axis, extent in enumerate(array.shape):
        rows = np.moveaxis(array, axis, -1)
        first = rows.reshape(-1)[0]
        if (
            extent > 1
            and np.isfinite(first)
            and first == np.rint(first)
            and bool((rows == first + np.arange(extent)).all())
        ):
            ranges_by_value[name] = (int(first), int(first) + extent)
            return
