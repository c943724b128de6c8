"""Operators of com.microsoft and ai.onnx.ml, and those that ONNX Runtime knew in the default domain before ONNX did."""

from onnxfuse.ops.registry import Operator, Trait

MICROSOFT = "com.microsoft"

SimplifiedLayerNormalization = Operator("SimplifiedLayerNormalization", Trait.KEEPS_SHAPE)

MicrosoftSimplifiedLayerNormalization = Operator(
    "SimplifiedLayerNormalization", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT
)
BiasGelu = Operator("BiasGelu", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
FastGelu = Operator("FastGelu", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
MicrosoftGelu = Operator("Gelu", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
QuickGelu = Operator("QuickGelu", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain=MICROSOFT)
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
