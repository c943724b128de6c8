"""Find symbolic extents that ONNX's inference for operator set 10 wrongly propagates through a Slice.

That inference keeps the name of an axis although the Slice shortens it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto, numpy_helper

from onnxfuse import ops
from onnxfuse.files.external import is_external
from onnxfuse.model.nested import constants_of
from onnxfuse.model.schema import opset_of
from onnxfuse.shapes.stand_ins import KEEPS_NAMES
from onnxfuse.shapes.types import value_types

WHOLE = 2**31 - 1
"""Slice ends from here on mean the end of the axis."""


def wrong_axes(inferred: ModelProto) -> Mapping[str, Sequence[int]]:
    """Return the axes of Slice outputs, in the main graph, whose symbolic extents may be wrong."""
    slices = [n for n in inferred.graph.node if n.op_type == ops.Slice and not n.domain]
    if opset_of(inferred) != KEEPS_NAMES or not slices:
        return {}
    types = value_types(inferred.graph)
    constants = {name: tensor for name, tensor in constants_of(inferred.graph).items() if not is_external(tensor)}
    axes_of = {}
    for node in slices:
        shape = types[node.input[0]].shape if node.input[0] in types else None
        if shape is None:
            continue
        starts, ends, axes, steps = (
            np.ravel(numpy_helper.to_array(constants[v])).tolist() if v in constants else None
            for v in (*node.input[1:], "", "")[:4]
        )
        unknown = axes is None and len(node.input) > 3 and node.input[3] != ""
        where = axes or list(range(len(shape) if unknown or starts is None else len(starts)))
        whole = set[int]()
        if starts is not None and ends is not None and not unknown and (steps is not None or len(node.input) < 5):
            bounds = zip(where, starts, ends, steps or [1] * len(starts), strict=True)
            whole = {a % len(shape) for a, start, end, step in bounds if start == 0 and end >= WHOLE and step == 1}
        doubted = {a % len(shape) for a in where} - whole
        open_axes = sorted(a for a in doubted if not isinstance(shape[a], int))
        if open_axes:
            axes_of[node.output[0]] = open_axes
    return axes_of
