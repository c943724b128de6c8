"""Constants that are only masks: brought to a number that any type has, where that changes nothing.

Exporters hide positions by adding float32's lowest number to scores, or choosing it, before a Softmax. The exponential
of -10000 is 0 in every type, float64 too, so that is as good a mask; a row that is hidden as a whole is the same for
all its positions either way.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from onnxfuse.precision.plan import FLOAT
from onnxfuse.precision.scopes import Scope, every

HIDING = 10_000.0
"""What hides: scores may be as large, and three such masks added stay in float16."""

BEYOND = 30_000.0
"""A constant above this is one that float16 holds badly or not at all."""

PASSING = frozenset({
    "Add", "Sub", "Mul", "Where", "Expand", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Slice", "Concat", "Cast",
    "Identity", "Tile", "Trilu", "Neg", "Min", "Max", "ScatterND", "Pad", "Gather",
})  # fmt: skip
"""Operators through which a mask reaches the scores."""

ENDS = frozenset({"Softmax"})
"""Operators that make 0 of what is hidden."""


def clamp(main: Scope) -> list[str]:
    """Bring masks beyond the range to `HIDING`, in place; return their names."""
    found = []
    for scope in every(main):
        for name, tensor in scope.constants.items():
            if _is_beyond(tensor) and _only_hides(scope, name):
                tensor.CopyFrom(_clamped(tensor))
                found.append(name)
        for node in scope.proto.node:
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            fills = node.op_type == "ConstantOfShape" and value is not None and _is_beyond(value)
            if fills and value is not None and _only_hides(scope, node.output[0]):
                value.CopyFrom(_clamped(value))
                found.append(node.output[0])
    return found


def _is_beyond(tensor: TensorProto) -> bool:
    if tensor.data_type != FLOAT:
        return False
    x = numpy_helper.to_array(tensor)
    beyond = np.isfinite(x) & (np.abs(x) > BEYOND)
    return bool(beyond.any() and (beyond | (x == 0)).all())


def _clamped(tensor: TensorProto) -> TensorProto:
    x = numpy_helper.to_array(tensor)
    return numpy_helper.from_array(np.where(np.isfinite(x), np.clip(x, -HIDING, HIDING), x), tensor.name)


def _only_hides(scope: Scope, name: str) -> bool:
    """Return whether all that a value reaches are Softmaxes, through what adds and chooses."""
    waiting, seen, ended = [(scope, name)], set[str](), False
    while waiting:
        where, value = waiting.pop()
        home = where.home(value)
        if value in seen:
            continue
        seen.add(value)
        if home is None or any(o.name == value for o in home.proto.output):
            return False
        for reader, node in home.readers.get(value, []):
            if _ends(node):
                ended = True
            elif node.op_type in PASSING and not node.domain:
                waiting += [(reader, o) for o in node.output if o]
            else:
                return False
    return ended


def _ends(node: NodeProto) -> bool:
    return node.op_type in ENDS and not node.domain
