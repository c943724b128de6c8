"""Attention and position embeddings."""

from onnxfuse.ops.registry import Operator, Trait

Attention = Operator("Attention", Trait.ATTENTION)

RotaryEmbedding = Operator("RotaryEmbedding", Trait.KEEPS_SHAPE)

LinearAttention = Operator("LinearAttention", Trait.OPAQUE)
CausalConvWithState = Operator("CausalConvWithState", Trait.OPAQUE)
