"""Traffic and operations of one node: bytes read and written, and floating-point operations, counted from shapes.

Bytes: each input once and each output once, at its own size (a broadcast bias counts as the vector that it is).
Operations: a multiply-add is two, everything else one per element and step of the formula, be it an addition or an
exponential; data movement is none.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import NodeProto

from onnxfuse import ops
from onnxfuse.cuda import is_pointwise, is_reduction
from onnxfuse.ops import Trait, named
from onnxfuse.profiling.sizes import ExpandedNode, Sized
from onnxfuse.shapes.types import UNKNOWN

VIEWS = named(Trait.VIEW) | {ops.Dropout}
"""Views: the same bytes under another shape, whose buffer ONNX Runtime passes on."""

ON_HOST = frozenset({ops.Shape, ops.Size, ops.Constant})
"""Computed without reading the data."""

PICKS = frozenset({ops.Gather, ops.GatherElements, ops.GatherND, ops.Slice, ops.Split})
"""Operators that read no more of the first input than they output."""

MOVES = frozenset({
    ops.Transpose, ops.Concat, ops.Expand, ops.Tile, ops.Pad, ops.Cast, ops.CastLike, ops.Where, ops.DepthToSpace,
    ops.SpaceToDepth, ops.ConstantOfShape, ops.Range, ops.EyeLike, ops.OneHot, ops.NonZero, ops.Trilu,
    ops.ScatterElements, ops.ScatterND, ops.Scatter, ops.Bernoulli, ops.RandomNormal, ops.RandomNormalLike,
    ops.RandomUniform, ops.RandomUniformLike, ops.TopK, ops.Unique, ops.ReverseSequence, ops.Compress, ops.ArgMax,
    ops.ArgMin, ops.Not, ops.And, ops.Or, ops.Xor, ops.Equal, ops.Less, ops.Greater, ops.LessOrEqual,
    ops.GreaterOrEqual, ops.IsNaN, ops.IsInf, ops.CenterCropPad,
})  # fmt: skip
"""No floating-point arithmetic: data is moved, compared or selected."""

CONTROL = named(Trait.HAS_BODY)
"""Operators with bodies."""

PRODUCTS = named(Trait.CONTRACTION, Trait.ATTENTION) | {ops.FusedMatMul, ops.FusedConv, ops.MultiHeadAttention}
"""Operators that run on tensor cores."""

STEPS: Mapping[str, int] = {
    ops.Gelu: 5, ops.FastGelu: 8, ops.QuickGelu: 5, ops.Sigmoid: 4, ops.Swish: 5, ops.HardSigmoid: 4,
    ops.HardSwish: 5, ops.Mish: 5, ops.Softplus: 3, ops.Softsign: 3, ops.Elu: 3, ops.Selu: 4, ops.Celu: 4,
    ops.LeakyRelu: 2, ops.PRelu: 2, ops.Clip: 2, ops.Mean: 2,
}  # fmt: skip
"""Steps of the formula per output element; other pointwise operators have one."""

ROW_STEPS: Mapping[str, int] = {
    ops.Softmax: 5, ops.LogSoftmax: 6, ops.LayerNormalization: 8, ops.SimplifiedLayerNormalization: 5,
    ops.RMSNormalization: 5, ops.InstanceNormalization: 8, ops.GroupNormalization: 8, ops.BatchNormalization: 4,
    ops.LpNormalization: 4, ops.SkipLayerNormalization: 9, ops.SkipSimplifiedLayerNormalization: 6, ops.ReduceL2: 2,
    ops.ReduceSumSquare: 2, ops.ReduceLogSumExp: 3, ops.ReduceL1: 2, ops.ReduceMean: 1, ops.ReduceSum: 1,
    ops.ReduceMax: 1, ops.ReduceMin: 1, ops.ReduceProd: 1, ops.ReduceLogSum: 1, ops.CumSum: 1,
    ops.GlobalAveragePool: 1, ops.GlobalMaxPool: 1, ops.Resize: 7, ops.LRN: 6, ops.MeanVarianceNormalization: 8,
}  # fmt: skip
"""Steps per input element (output element for Resize): subtract the maximum, exponential, sum, divide, ..."""


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
        if plain.domain in ("", "ai.onnx", "com.microsoft") and plain.op_type in PRODUCTS:
            dtype = model.types.get(plain.input[0], UNKNOWN).dtype
            return str(onnx.helper.tensor_dtype_to_np_dtype(dtype).name) if dtype else ""
    return ""


def _read(value: str, readers: Iterable[NodeProto], model: Sized, notes: list[str]) -> int:
    """Return the bytes of `value` that these nodes need: the elements selected by Gather and Slice, else all."""
    whole = _bytes(value, model, notes)
    needed = 0
    for node in readers:
        for position, name in enumerate(node.input):
            if name != value or node.op_type in ON_HOST:
                continue
            picked = node.op_type in PICKS and position == 0
            needed += sum(_bytes(v, model, notes) for v in node.output if v) if picked else whole
    return min(whole, needed)


def _bytes(value: str, model: Sized, notes: list[str]) -> int:
    found = model.bytes_of(value)
    if found is None:
        notes.append(f"the shape of '{value}' is not known ({model.types.get(value, 'nothing')})")
    return found or 0


def _flops(node: NodeProto, model: Sized, notes: list[str]) -> int:
    """Return the operations of one plain node; 0 and a note if unknown."""
    if node.domain in ("", "ai.onnx", "com.microsoft"):
        if node.op_type in VIEWS | ON_HOST | PICKS | MOVES:
            return 0
        formula = _FORMULAS.get(node.op_type)
        if formula is None and node.op_type in ROW_STEPS:
            formula = _row
        if formula is None and (is_pointwise(node.op_type, node.domain) or node.op_type in STEPS):
            formula = _pointwise
        if formula is not None:
            found = formula(node, _Extents(node, model))
            if found is None:
                notes.append(f"the shapes of {node.op_type} '{node.name or node.output[0]}' are not known")
            return found or 0
        if is_reduction(node.op_type, node.domain):
            return _row(node, _Extents(node, model)) or 0
    notes.append(f"the operations of {node.domain + '.' if node.domain else ''}{node.op_type} are not known")
    return 0


class _Extents:
    """The shapes of one node's values by index; None for an absent or unknown one."""

    def __init__(self, node: NodeProto, model: Sized) -> None:
        self.inputs = [model.extents(v) if v else None for v in node.input]
        self.outputs = [model.extents(v) if v else None for v in node.output]

    def input(self, position: int) -> tuple[int, ...] | None:
        return self.inputs[position] if position < len(self.inputs) else None

    @property
    def output(self) -> tuple[int, ...] | None:
        return self.outputs[0]


Formula = Callable[[NodeProto, _Extents], int | None]


def _pointwise(node: NodeProto, of: _Extents) -> int | None:
    if of.output is None:
        return None
    operands = (
        max(1, len([v for v in node.input if v]) - 1) if node.op_type in (ops.Sum, ops.Max, ops.Min, ops.Mean) else 1
    )
    return math.prod(of.output) * STEPS.get(node.op_type, 1) * operands


def _row(node: NodeProto, of: _Extents) -> int | None:
    shape = of.output if node.op_type == ops.Resize else of.input(0)
    return None if shape is None else math.prod(shape) * ROW_STEPS.get(node.op_type, 1)


def _matmul(node: NodeProto, of: _Extents) -> int | None:
    left, out = of.input(0), of.output
    return None if not left or out is None else 2 * math.prod(out) * left[-1]


def _fused_matmul(node: NodeProto, of: _Extents) -> int | None:
    left, out = of.input(0), of.output
    if not left or out is None:
        return None
    return 2 * math.prod(out) * left[-2 if _attribute(node, "transA", 0) else -1]


def _gemm(node: NodeProto, of: _Extents) -> int | None:
    left, out = of.input(0), of.output
    if left is None or out is None:
        return None
    terms = left[0 if _attribute(node, "transA", 0) else 1]
    biased = len(node.input) > 2 and bool(node.input[2])
    return math.prod(out) * (2 * terms + biased)


def _conv(node: NodeProto, of: _Extents) -> int | None:
    weight, out = of.input(1), of.output
    if weight is None or out is None:
        return None
    biased = len(node.input) > 2 and bool(node.input[2])
    return math.prod(out) * (2 * math.prod(weight[1:]) + biased)


def _conv_transpose(node: NodeProto, of: _Extents) -> int | None:
    x, weight, out = of.input(0), of.input(1), of.output
    if x is None or weight is None or out is None:
        return None
    biased = len(node.input) > 2 and bool(node.input[2])
    return 2 * math.prod(x) * math.prod(weight[1:]) + biased * math.prod(out)


def _pool(node: NodeProto, of: _Extents) -> int | None:
    kernel = _attribute(node, "kernel_shape", ())
    return None if of.output is None or not isinstance(kernel, Sequence) else math.prod(of.output) * math.prod(kernel)


def _einsum(node: NodeProto, of: _Extents) -> int | None:
    """One multiplication per operand and one addition for every combination of all indices."""
    equation = _attribute(node, "equation", b"")
    terms = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "").split("->")[0]
    extents: dict[str, int] = {}
    free = 1
    for term, shape in zip(terms.split(","), of.inputs, strict=False):
        if shape is None:
            return None
        named = term.replace("...", "")
        free = max(free, math.prod(shape[: len(shape) - len(named)]) if "..." in term else 1)
        extents.update(zip(named, shape[len(shape) - len(named) :], strict=False))
    return len(of.inputs) * math.prod(extents.values()) * free


def _attention(node: NodeProto, of: _Extents) -> int | None:
    """Two matrix products and a softmax, ONNX's `Attention`: 4-D [batch, heads, length, size], or 3-D with merged
    heads."""
    q, k, v = of.input(0), of.input(1), of.input(2)
    if q is None or k is None or v is None:
        return None
    if len(q) == 3:
        heads = int(str(_attribute(node, "q_num_heads", 1)))
        size, value = q[-1] // heads, v[-1] // int(str(_attribute(node, "kv_num_heads", heads)))
    else:
        heads, size, value = q[1], q[-1], v[-1]
    return q[0] * heads * q[-2] * k[-2] * (2 * size + 2 * value + 6)


def _multi_head_attention(node: NodeProto, of: _Extents) -> int | None:
    """ONNX Runtime's `MultiHeadAttention`: Q, K, V as [batch, length, heads x size]."""
    q, k, v = of.input(0), of.input(1), of.input(2)
    if q is None or k is None or v is None or len(q) != 3:
        return None
    heads, length = int(str(_attribute(node, "num_heads", 1))), k[-2]
    return q[0] * q[1] * length * (2 * q[2] + 2 * v[-1] * (len(v) == 3 or heads) + 6 * heads)


_FORMULAS: Mapping[str, Formula] = {
    ops.MatMul: _matmul, ops.FusedMatMul: _fused_matmul, ops.Gemm: _gemm, ops.Conv: _conv, ops.FusedConv: _conv,
    ops.ConvTranspose: _conv_transpose, ops.MaxPool: _pool, ops.AveragePool: _pool, ops.LpPool: _pool,
    ops.Einsum: _einsum, ops.Attention: _attention, ops.MultiHeadAttention: _multi_head_attention,
}  # fmt: skip


def _attribute(node: NodeProto, name: str, default: object) -> object:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
