"""Traffic and operations of one node: bytes read and written, and floating-point operations, counted from shapes.

Bytes: each input once and each output once, at its own size (a broadcast bias counts as the vector that it is).
Operations: a multiply-add is two, everything else one per element and step of the formula, be it an addition or an
exponential; data movement is none.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import onnx
from onnx import NodeProto

from onnxfuse import ops
from onnxfuse.measure.profile.sizes import ExpandedNode, Sized
from onnxfuse.ops import Trait, named
from onnxfuse.ops.flops import NodeShapes
from onnxfuse.shapes.types import UNKNOWN
from onnxfuse.shapes.value_facts import attribute

VIEWS = named(Trait.VIEW) | {ops.Dropout}
"""Views: the same bytes under another shape, whose buffer ONNX Runtime passes on."""

ON_HOST = named(Trait.READS_SHAPE) | {ops.Constant}
"""Computed without reading the data."""

CONTROL = named(Trait.HAS_BODY)
"""Operators with bodies."""


@dataclass(frozen=True)
class TrafficEstimate:
    """Traffic of one node, or one fused op, in one run."""

    reads: int
    """Bytes read."""
    writes: int
    """Bytes written."""
    flops: int
    note: str = ""
    """What could not be counted, and why."""

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.reads + self.writes


def traffic_estimate(node: ExpandedNode, model: Sized) -> TrafficEstimate:
    """Return the traffic of `node`: a fused op reads each input once, writes each output once, and computes its
    body."""
    notes: list[str] = []
    plain = node.body or (node.proto,)
    if node.op is None and node.proto.op_type in CONTROL:
        return TrafficEstimate(0, 0, 0, f"{node.proto.op_type}: how often its body runs is not known from shapes")
    if node.op is None and (node.proto.op_type in VIEWS or node.proto.op_type in ON_HOST):
        return TrafficEstimate(0, 0, 0)
    if model.on_host.issuperset(node.proto.output):  # shape arithmetic, not on the device
        return TrafficEstimate(0, 0, 0)
    reads = sum(_read(v, plain, model, notes) for v in dict.fromkeys(v for v in node.proto.input if v))
    writes = sum(_bytes(v, model, notes) for v in node.proto.output if v)
    operations = sum(_flops(n, model, notes) for n in plain)
    return TrafficEstimate(reads, writes, operations, "; ".join(dict.fromkeys(notes)))


def product_type(node: ExpandedNode, model: Sized) -> str:
    """Return the element type of the first matrix product or convolution in `node`; "" if there is none."""
    for plain in node.body or (node.proto,):
        entry = ops.operator(plain.op_type, plain.domain)
        if entry is not None and entry.traits & {Trait.CONTRACTION, Trait.ATTENTION}:
            dtype = model.types.get(plain.input[0], UNKNOWN).dtype
            return str(onnx.helper.tensor_dtype_to_np_dtype(dtype).name) if dtype else ""
    return ""


def _read(value: str, readers: Iterable[NodeProto], model: Sized, notes: list[str]) -> int:
    """Return the bytes of `value` that these nodes need: the elements selected by Gather and Slice, else all."""
    complete = _bytes(value, model, notes)
    needed = 0
    for node in readers:
        for position, name in enumerate(node.input):
            if name != value or node.op_type in ON_HOST:
                continue
            entry = ops.operator(node.op_type, node.domain)
            picked = entry is not None and Trait.SELECTS in entry.traits and position == 0
            needed += sum(_bytes(v, model, notes) for v in node.output if v) if picked else complete
    return min(complete, needed)


def _bytes(value: str, model: Sized, notes: list[str]) -> int:
    size = model.bytes_of(value)
    if size is None:
        notes.append(f"the shape of '{value}' is not known ({model.types.get(value, 'nothing')})")
    return size or 0


def _flops(node: NodeProto, model: Sized, notes: list[str]) -> int:
    """Return the operations of one plain node; 0 and a note if unknown."""
    entry = ops.operator(node.op_type, node.domain)
    if entry is None or entry.flops is None:
        notes.append(f"the operations of {node.domain + '.' if node.domain else ''}{node.op_type} are not known")
        return 0
    output, *inputs = (model.extents(v) if v else None for v in (node.output[0], *node.input))
    flops = entry.flops(NodeShapes(output, inputs, list(map(bool, node.input)), partial(attribute, node)))
    if flops is None:
        notes.append(f"the shapes of {node.op_type} '{node.name or node.output[0]}' are not known")
    return flops or 0
