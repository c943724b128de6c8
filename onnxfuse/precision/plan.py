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
from onnxfuse.model.host_values import SHAPE_READERS
from onnxfuse.model.precision_record import TYPES
from onnxfuse.ops import Trait, named
from onnxfuse.ops.inputs import NUMBERS_OF_THINGS, CropRegion, Scales
from onnxfuse.precision import schemas
from onnxfuse.precision.scopes import Scope, every, key

FLOAT = TensorProto.FLOAT
LOW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
TEXT = {TYPES[name]: f"tensor({name})" for name in ("float16", "bfloat16")}

CARRIERS = named(Trait.HAS_BODY)
"""Operators with bodies: inputs and outputs of a body keep their types, so that an accumulated state is not rounded."""

QUANTIZED = named(Trait.QUANTIZES)

TYPELESS = named(Trait.READS_SHAPE, Trait.CASTS)
"""Operators whose first input may have any type, independent of the output."""

STAY = (Scales, CropRegion)
"""Roles of inputs that stay float32: ONNX Runtime reads them on the host."""

ON_CPU = named(Trait.HALF_ON_CPU)

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
    nodes_by_name: dict[str, FloatNode] = {}
    for scope in every(main):
        for node in scope.proto.node:
            if _has_floats(scope, node):
                nodes_by_name[key(node)] = _place(scope, node, opsets, deciding=id(node) in deciding)
    return nodes_by_name


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
        entry = ops.operator(node.op_type, node.domain)
        stay = entry.positions(*STAY) if entry is not None else ()
        reads = [
            n for n, v in enumerate(node.input)
            if v and scope.type(v).dtype == FLOAT and n not in stay and not is_typeless(node, n)
        ]  # fmt: skip
        float_outputs = [n for n, v in enumerate(node.output) if v and scope.type(v).dtype == FLOAT]
        for low in LOW:
            slots = (
                tuple(n for n in reads if TEXT[low] in inputs[n]),
                tuple(n for n in float_outputs if TEXT[low] in outputs[n]),
            )
            if slots[1] or (slots[0] and not float_outputs):
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
        return "controls a shape, a trip count or a branch"
    if any(v and not scope.type(v).dtype for v in (*node.input, *node.output)):
        return "reads or gives a value of unknown type"
    return ""


def _numbers(tensor: TensorProto | None) -> np.ndarray | None:
    return None if tensor is None or is_external(tensor) else numpy_helper.to_array(tensor)


def _deciding(main: Scope) -> set[int]:
    """Return the nodes, by identity, from which shapes, counts, offsets and branches are computed.

    They retain full precision.
    """
    indices: set[int] = set()
    for scope in every(main):
        waiting: list[tuple[Scope, str]] = []
        for node in scope.proto.node:
            entry = ops.operator(node.op_type, node.domain)
            count_positions = entry.positions(*NUMBERS_OF_THINGS) if entry is not None else ()
            waiting += [(scope, node.input[n]) for n in count_positions if n < len(node.input) and node.input[n]]
        while waiting:
            where, name = waiting.pop()
            producer = where.producer(name)
            if producer is None or id(producer[1]) in indices or not _is_small(where, name):
                continue
            indices.add(id(producer[1]))
            if producer[1].op_type not in SHAPE_READERS:
                waiting += [(producer[0], v) for v in producer[1].input if v]
    return indices


def _is_small(scope: Scope, name: str) -> bool:
    shape = scope.type(name).shape
    fixed = [d for d in shape or () if isinstance(d, int)]
    return shape is not None and len(fixed) == len(shape) and math.prod(fixed) <= ON_HOST


def converted(every_place: Mapping[str, FloatNode], pinned: Mapping[str, int], low: int) -> dict[str, int]:
    """Return the type in which each node computes: as given by `pinned`, else `low` where possible."""
    return {
        name: pinned.get(name, low if low in float_node.types else FLOAT)
        if pinned.get(name, low) in float_node.types
        else FLOAT
        for name, float_node in every_place.items()
    }  # fmt: skip


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Return the opset version of each domain that the model imports."""
    return {("" if o.domain == "ai.onnx" else o.domain): int(o.version) for o in model.opset_import}


def float_values(float_node: FloatNode) -> Iterable[str]:
    """Yield the float32 outputs of a node."""
    return (v for v in float_node.node.output if v and float_node.scope.type(v).dtype == FLOAT)
