"""Determine which nodes can compute in a lower precision, and which of their values then have its type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.files.external import is_external
from onnxfuse.model import schema
from onnxfuse.model.precision_record import TYPES
from onnxfuse.ops import Trait, named
from onnxfuse.precision import schemas
from onnxfuse.precision.scopes import Scope, every, key

FLOAT = TensorProto.FLOAT
LOW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
TEXT = {TYPES[name]: f"tensor({name})" for name in ("float16", "bfloat16")}

CARRIERS = named(Trait.HAS_BODY)
"""Operators with bodies: inputs and outputs of a body keep their types, so that an accumulated state is not rounded."""

QUANTIZED = frozenset({ops.QuantizeLinear, ops.DequantizeLinear, ops.DynamicQuantizeLinear})

TYPELESS = frozenset({ops.Shape, ops.Size, ops.Cast})
"""Operators whose first input may have any type, independent of the output."""

STAY: dict[str, tuple[int, ...]] = {ops.Resize: (1, 2), ops.Upsample: (1,)}
"""Inputs that stay float32: scales and regions, which ONNX Runtime reads on the host."""

ON_CPU = frozenset({ops.Atan, ops.GridSample, ops.STFT, ops.DFT, ops.InstanceNormalization})
"""Operators that ONNX Runtime 1.31 places on the CPU for half types in a CUDA session."""

DECIDING: dict[str, tuple[int, ...]] = {
    ops.If: (0,), ops.Loop: (0, 1), ops.Resize: (1, 2, 3), ops.Upsample: (1,), ops.Reshape: (1,), ops.Expand: (1,),
    ops.Tile: (1,), ops.ConstantOfShape: (0,), ops.Range: (0, 1, 2), ops.TopK: (1,), ops.OneHot: (1,),
    ops.Slice: (1, 2, 4), ops.Pad: (1,), ops.Trilu: (1,), ops.Split: (1,),
}  # fmt: skip
"""Inputs that are counts, offsets or conditions: values from which they are computed retain full precision."""

ON_HOST = 100
"""Elements up to which a value may be shape arithmetic; the same limit as in ONNX Runtime."""

Slots = tuple[tuple[int, ...], tuple[int, ...]]
"""Indices of inputs and of outputs."""


@dataclass(frozen=True)
class FloatNode:
    """One node that reads or produces float32 values."""

    scope: Scope
    node: NodeProto
    types: Mapping[int, Slots]
    """The types besides float32 in which it can compute, each with the slots that then have it; others stay float32."""
    why: str
    """Why there are none; empty if there are."""


def float_nodes(main: Scope, opsets: dict[str, int]) -> dict[str, FloatNode]:
    """Return every node with float32 values by its first output, in file order."""
    deciding = _deciding(main)
    found: dict[str, FloatNode] = {}
    for scope in every(main):
        for node in scope.proto.node:
            if _has_floats(scope, node):
                found[key(node)] = _place(scope, node, opsets, deciding=id(node) in deciding)
    return found


def _has_floats(scope: Scope, node: NodeProto) -> bool:
    """Return whether a node computes with float32, as opposed to producing a shape or another type."""
    if node.op_type == ops.Constant and not node.domain:
        return False
    read = [v for n, v in enumerate(node.input) if v and not is_typeless(node, n)]
    return any(scope.type(v).dtype == FLOAT for v in (*read, *node.output) if v)


def _place(scope: Scope, node: NodeProto, opsets: dict[str, int], *, deciding: bool) -> FloatNode:
    types: dict[int, Slots] = {}
    why = _stays(scope, node, deciding=deciding)
    if not why:
        inputs, outputs = schemas.allowed(node, opsets)
        stay = STAY.get(node.op_type, ()) if not node.domain else ()
        reads = [
            n for n, v in enumerate(node.input)
            if v and scope.type(v).dtype == FLOAT and n not in stay and not is_typeless(node, n)
        ]  # fmt: skip
        gives = [n for n, v in enumerate(node.output) if v and scope.type(v).dtype == FLOAT]
        for low in LOW:
            slots = (
                tuple(n for n in reads if TEXT[low] in inputs[n]),
                tuple(n for n in gives if TEXT[low] in outputs[n]),
            )
            if slots[1] or (slots[0] and not gives):
                types[low] = slots
        why = "" if types else "has no form for lower precision"
    return FloatNode(scope, node, types, why)


def is_typeless(node: NodeProto, position: int) -> bool:
    """Return whether an input of a node may have any type, independent of the output."""
    return position == 0 and not node.domain and node.op_type in TYPELESS


def _stays(scope: Scope, node: NodeProto, *, deciding: bool) -> str:
    """Return why a node must stay float32; empty if it need not."""
    if node.op_type in CARRIERS:
        return "values keep their types on the way into its body and out"
    if schema.is_random(node, lambda name: _numbers(scope.constant(name))):
        return "draws random numbers"
    if node.op_type in QUANTIZED:
        return "is quantized"
    if node.op_type in ON_CPU and not node.domain:
        return "runs on the CPU in lower precision"
    if deciding:
        return "decides on a shape, a number of turns or a branch"
    if any(v and not scope.type(v).dtype for v in (*node.input, *node.output)):
        return "reads or gives a value of unknown type"
    return ""


def _numbers(tensor: TensorProto | None) -> np.ndarray | None:
    return None if tensor is None or is_external(tensor) else numpy_helper.to_array(tensor)


def _deciding(main: Scope) -> set[int]:
    """Return the nodes, by identity, from which shapes, iteration counts and conditions are computed."""
    found: set[int] = set()
    for scope in every(main):
        waiting: list[tuple[Scope, str]] = []
        for node in scope.proto.node:
            if node.domain:
                continue
            asked = DECIDING.get(node.op_type, ())
            waiting += [(scope, node.input[n]) for n in asked if n < len(node.input) and node.input[n]]
        while waiting:
            where, name = waiting.pop()
            made = where.producer(name)
            if made is None or id(made[1]) in found or not _is_small(where, name):
                continue
            found.add(id(made[1]))
            if made[1].op_type not in (ops.Shape, ops.Size):
                waiting += [(made[0], v) for v in made[1].input if v]
    return found


def _is_small(scope: Scope, name: str) -> bool:
    shape = scope.type(name).shape
    known = [d for d in shape or () if isinstance(d, int)]
    return shape is not None and len(known) == len(shape) and math.prod(known) <= ON_HOST


def converted(every_place: Mapping[str, FloatNode], kept: Mapping[str, int], low: int) -> dict[str, int]:
    """Return the type in which each node computes: as given by `kept`, else `low` where possible."""
    return {
        name: kept.get(name, low if low in place.types else FLOAT)
        if kept.get(name, low) in place.types
        else FLOAT
        for name, place in every_place.items()
    }  # fmt: skip


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Return the opset version of each domain that the model imports."""
    return {("" if o.domain == "ai.onnx" else o.domain): int(o.version) for o in model.opset_import}


def float_values(place: FloatNode) -> Iterable[str]:
    """Yield the float32 outputs of a node."""
    return (v for v in place.node.output if v and place.scope.type(v).dtype == FLOAT)
