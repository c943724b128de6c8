"""Operators of com.microsoft, and those that ONNX Runtime knew in the default domain before ONNX did."""

from onnxfuse.ops.registry import Entries, Trait, entries

MICROSOFT = "com.microsoft"

ENTRIES: Entries = (
    *entries("SimplifiedLayerNormalization", Trait.KEEPS_SHAPE),
    *entries(
        "SimplifiedLayerNormalization BiasGelu FastGelu Gelu QuickGelu RotaryEmbedding MoE QMoE BiasDropout GroupNorm "
        "BiasAdd Inverse",
        Trait.KEEPS_SHAPE,
        domain=MICROSOFT,
    ),
    *entries("FusedMatMul FusedConv MatMulNBits", Trait.CONTRACTION, domain=MICROSOFT),
    *entries("MultiHeadAttention GroupQueryAttention", Trait.ATTENTION, domain=MICROSOFT),
    *entries("SkipLayerNormalization SkipSimplifiedLayerNormalization", Trait.OPAQUE, domain=MICROSOFT),
)
