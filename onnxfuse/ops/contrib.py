"""Operators of com.microsoft and ai.onnx.ml, and those that ONNX Runtime knew in the default domain before ONNX did."""

from onnxfuse.ops import scalar
from onnxfuse.ops.families import pointwise
from onnxfuse.ops.registry import Operator, Trait
from onnxfuse.ops.scalar import Node, Scalar

MICROSOFT = "com.microsoft"


def _biased(node: Node) -> Scalar:
    x, bias = node.real(0), node.optional(1)
    return x if bias is None else x + bias


def _quick_gelu(node: Node) -> Scalar:
    x = node.real(0)
    return x * scalar.sigmoid(x * node.number("alpha", 1.702))


BiasGelu = pointwise("BiasGelu", lambda node: scalar.gelu(_biased(node)), Trait.KEEPS_TYPE, flops=6, domain=MICROSOFT)
FastGelu = pointwise(
    "FastGelu", lambda node: scalar.gelu_tanh(_biased(node)), Trait.KEEPS_TYPE, flops=8, domain=MICROSOFT
)
MicrosoftGelu = pointwise("Gelu", lambda node: scalar.gelu(node.real(0)), Trait.KEEPS_TYPE, flops=5, domain=MICROSOFT)
QuickGelu = pointwise("QuickGelu", _quick_gelu, Trait.KEEPS_TYPE, flops=5, domain=MICROSOFT)

SimplifiedLayerNormalization = Operator("SimplifiedLayerNormalization", Trait.KEEPS_SHAPE)

MicrosoftSimplifiedLayerNormalization = Operator(
    "SimplifiedLayerNormalization", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT
)
MicrosoftRotaryEmbedding = Operator("RotaryEmbedding", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
MoE = Operator("MoE", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
QMoE = Operator("QMoE", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
BiasDropout = Operator("BiasDropout", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
GroupNorm = Operator("GroupNorm", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
BiasAdd = Operator("BiasAdd", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
Inverse = Operator("Inverse", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)

Imputer = Operator("Imputer", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain="ai.onnx.ml")

FusedMatMul = Operator("FusedMatMul", Trait.CONTRACTION, domain=MICROSOFT)
FusedConv = Operator("FusedConv", Trait.CONTRACTION, domain=MICROSOFT)
MatMulNBits = Operator("MatMulNBits", Trait.CONTRACTION, domain=MICROSOFT)

MultiHeadAttention = Operator("MultiHeadAttention", Trait.ATTENTION, domain=MICROSOFT)
GroupQueryAttention = Operator("GroupQueryAttention", Trait.ATTENTION, domain=MICROSOFT)

SkipLayerNormalization = Operator("SkipLayerNormalization", Trait.OPAQUE, domain=MICROSOFT)
SkipSimplifiedLayerNormalization = Operator("SkipSimplifiedLayerNormalization", Trait.OPAQUE, domain=MICROSOFT)
