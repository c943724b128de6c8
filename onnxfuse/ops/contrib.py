"""Operators of com.microsoft and ai.onnx.ml, and those that ONNX Runtime knew in the default domain before ONNX did."""

from onnx import TensorProto

from onnxfuse.ops import flops, scalar
from onnxfuse.ops.families import moving, pointwise
from onnxfuse.ops.reduction import normalized, rms_normalization, root_mean_square
from onnxfuse.ops.registry import Operator, Trait
from onnxfuse.ops.scalar import Node, RowNode, Scalar

MICROSOFT = "com.microsoft"


def _biased(node: Node) -> Scalar:
    x, bias = node.real(0), node.optional(1)
    return x if bias is None else x + bias


def _quick_gelu(node: Node) -> Scalar:
    x = node.real(0)
    return x * scalar.sigmoid(x * node.number("alpha", 1.702))


def _scaled_silu(node: Node) -> Scalar:
    """The scale is an attribute or an input, which may be of another type."""
    x, scale = node.real(0), node.optional(1)
    if scale is None:
        return _silu(x * node.number("alpha", 1.0))
    if scale.dtype == x.dtype:
        return _silu(x * scale)
    return _silu((x.cast(TensorProto.FLOAT) * scale.cast(TensorProto.FLOAT)).cast(x.dtype))


def _silu(x: Scalar) -> Scalar:
    return x * scalar.sigmoid(x)


def _skip_layer_normalization(node: RowNode) -> tuple[Scalar, ...]:
    total = _skipped(node, node.optional(4))
    y, mean, inverse = normalized(node, total, node.term(2), node.optional(3), epsilon=1e-12)
    return y, mean, inverse, total


def _skip_simplified_layer_normalization(node: RowNode) -> tuple[Scalar, ...]:
    total = _skipped(node, node.optional(3))
    y, inverse = root_mean_square(node, total, node.term(2), 1e-12)
    return y, inverse, inverse, total


def _skipped(node: Node, bias: Scalar | None) -> Scalar:
    total = node.term(0) + node.term(1)
    return total if bias is None else total + bias


BiasGelu = pointwise("BiasGelu", lambda node: scalar.gelu(_biased(node)), Trait.KEEPS_TYPE, flops=6, domain=MICROSOFT)
FastGelu = pointwise(
    "FastGelu", lambda node: scalar.gelu_tanh(_biased(node)), Trait.KEEPS_TYPE, flops=8, domain=MICROSOFT
)
MicrosoftGelu = pointwise("Gelu", lambda node: scalar.gelu(node.real(0)), Trait.KEEPS_TYPE, flops=5, domain=MICROSOFT)
QuickGelu = pointwise("QuickGelu", _quick_gelu, Trait.KEEPS_TYPE, flops=5, domain=MICROSOFT)
ScaledSiLU = pointwise("ScaledSiLU", _scaled_silu, Trait.KEEPS_TYPE, flops=6, domain=MICROSOFT)

SimplifiedLayerNormalization = Operator(
    "SimplifiedLayerNormalization", Trait.KEEPS_SHAPE, rows=rms_normalization, flops=flops.per_input(5)
)

MicrosoftSimplifiedLayerNormalization = Operator(
    "SimplifiedLayerNormalization",
    Trait.KEEPS_SHAPE,
    Trait.KEEPS_TYPE,
    domain=MICROSOFT,
    rows=rms_normalization,
    flops=flops.per_input(5),
)
MicrosoftRotaryEmbedding = Operator("RotaryEmbedding", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
MoE = Operator("MoE", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
QMoE = Operator("QMoE", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
BiasDropout = Operator("BiasDropout", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
GroupNorm = Operator("GroupNorm", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
BiasAdd = Operator("BiasAdd", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
Inverse = Operator("Inverse", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)

Imputer = Operator("Imputer", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain="ai.onnx.ml")

FusedMatMul = Operator("FusedMatMul", Trait.CONTRACTION, domain=MICROSOFT, flops=flops.matmul)
FusedConv = Operator("FusedConv", Trait.CONTRACTION, domain=MICROSOFT, flops=flops.convolution)
MatMulNBits = Operator("MatMulNBits", Trait.CONTRACTION, domain=MICROSOFT)

MicrosoftAttention = Operator("Attention", Trait.ATTENTION, domain=MICROSOFT)
MultiHeadAttention = Operator("MultiHeadAttention", Trait.ATTENTION, domain=MICROSOFT, flops=flops.multi_head_attention)
GroupQueryAttention = Operator("GroupQueryAttention", Trait.ATTENTION, domain=MICROSOFT)

SkipLayerNormalization = Operator(
    "SkipLayerNormalization", domain=MICROSOFT, rows=_skip_layer_normalization, flops=flops.per_input(9)
)
SkipSimplifiedLayerNormalization = Operator(
    "SkipSimplifiedLayerNormalization",
    domain=MICROSOFT,
    rows=_skip_simplified_layer_normalization,
    flops=flops.per_input(6),
)

MicrosoftGatherND = moving("GatherND", Trait.SELECTS, domain=MICROSOFT)
MicrosoftPad = moving("Pad", domain=MICROSOFT)
MicrosoftRange = moving("Range", domain=MICROSOFT)
MicrosoftTrilu = moving("Trilu", Trait.KEEPS_SHAPE, domain=MICROSOFT)
MicrosoftUnique = moving("Unique", domain=MICROSOFT)
