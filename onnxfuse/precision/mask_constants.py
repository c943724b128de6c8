"""Replace mask constants by a value that every type can represent, where that changes nothing.

Exporters mask positions before a Softmax by adding float32's lowest number to the scores, or selecting it. The
exponential of -10000 is 0 in every type, also in float64, so it masks equally well; -30720, which rules recognize as a
mask for any scores, is better if nothing else is added to it. A completely masked row is uniform either way.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.ops import Trait, named
from onnxfuse.precision.plan import FLOAT
from onnxfuse.precision.scopes import Scope, every

HIDING = (30_720.0, 10_000.0)
"""Mask values if at most one addition follows (with scores of up to 2,000 added it is less than half of float16's
range, as `sensitive_nodes.HEADROOM` requires), and if more do: scores may be equally large, and three such masks added
stay in float16. Both are float16 numbers, the first also a bfloat16 number."""

BEYOND = 30_000.0
"""Constants above this are poorly or not at all representable in float16."""

PASSING = named(Trait.CARRIES, Trait.CARRIES_SOME, Trait.CASTS, Trait.ARITHMETIC) | {ops.Neg}
"""Operators through which a mask reaches the scores."""


def clamp(main: Scope) -> list[str]:
    """Clamp mask constants beyond the range to `HIDING`, in place; return their names."""
    clamped = []
    for scope in every(main):
        for name, tensor in (*scope.constants.items(), *_filled(scope)):
            if _is_beyond(tensor) and (added := _added(scope, name)) is not None:
                tensor.CopyFrom(_clamped(tensor, HIDING[added > 1]))
                clamped.append(name)
    return clamped


def _filled(scope: Scope) -> Iterator[tuple[str, TensorProto]]:
    """Yield tensors filled with one number, and that number."""
    for node in scope.proto.node:
        if node.op_type == ops.ConstantOfShape:
            yield from ((node.output[0], a.t) for a in node.attribute if a.name == "value")


def _is_beyond(tensor: TensorProto) -> bool:
    if tensor.data_type != FLOAT:
        return False
    x = numpy_helper.to_array(tensor)
    exceeding = np.isfinite(x) & (np.abs(x) > BEYOND)
    return bool(exceeding.any() and (exceeding | (x == 0)).all())


def _clamped(tensor: TensorProto, hiding: float) -> TensorProto:
    x = numpy_helper.to_array(tensor)
    return numpy_helper.from_array(np.where(np.isfinite(x), np.clip(x, -hiding, hiding), x), tensor.name)


def _added(scope: Scope, name: str) -> int | None:
    """Return the largest number of additions, up to 2, between a value and the Softmaxes that it masks.

    None if it reaches anything but Softmaxes, or passes anything but additions and selections on the way.
    """
    waiting, visited, most = [(scope, name, 0)], dict[str, int](), None
    while waiting:
        where, value, added = waiting.pop()
        owner = where.home(value)
        if added <= visited.get(value, -1):
            continue
        visited[value] = added
        if owner is None or any(o.name == value for o in owner.proto.output):
            return None
        for reader, node in owner.readers.get(value, []):
            if _ends(node):
                most = max(added, most or 0)
            elif _passes(node):
                after = min(added + _adds(node), 2)
                waiting += [(reader, o, after) for o in node.output if o]
            else:
                return None
    return most


def _ends(node: NodeProto) -> bool:
    """Return whether a node turns masked scores into 0."""
    return node.op_type == ops.Softmax and not node.domain


def _adds(node: NodeProto) -> bool:
    """Return whether a node adds or subtracts: one that passes a mask on."""
    entry = ops.operator(node.op_type)
    return entry is not None and Trait.ARITHMETIC in entry.traits and entry.neutral == 0


def _passes(node: NodeProto) -> bool:
    return not node.domain and node.op_type in PASSING
