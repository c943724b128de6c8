"""Operators of com.microsoft and ai.onnx.ml, and those that ONNX Runtime knew in the default domain before ONNX did."""

from onnxfuse.ops.registry import Entries, Trait, entries

MICROSOFT = "com.microsoft"

ENTRIES: Entries = (
    *entries("SimplifiedLayerNormalization", Trait.KEEPS_SHAPE),
    *entries(
        "SimplifiedLayerNormalization BiasGelu FastGelu Gelu QuickGelu RotaryEmbedding MoE QMoE BiasDropout GroupNorm "
        "BiasAdd Inverse",
        Trait.KEEPS_SHAPE,
        Trait.KEEPS_TYPE,
        domain=MICROSOFT,
    ),
    *entries("Imputer", Trait.KEEPS_SHAPE, Trait.KEEPS_TYPE, domain="ai.onnx.ml"),
    *entries("FusedMatMul FusedConv MatMulNBits", Trait.CONTRACTION, domain=MICROSOFT),
    *entries("MultiHeadAttention GroupQueryAttention", Trait.ATTENTION, domain=MICROSOFT),
    *entries("SkipLayerNormalization SkipSimplifiedLayerNormalization", Trait.OPAQUE, domain=MICROSOFT),
)
