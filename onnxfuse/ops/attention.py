"""Attention and position embeddings."""

from onnxfuse.ops import flops
from onnxfuse.ops.registry import Operator, Trait

Attention = Operator("Attention", Trait.ATTENTION, flops=flops.attention)

RotaryEmbedding = Operator("RotaryEmbedding", Trait.KEEPS_SHAPE)

LinearAttention = Operator("LinearAttention", Trait.OPAQUE)
CausalConvWithState = Operator("CausalConvWithState", Trait.OPAQUE)
