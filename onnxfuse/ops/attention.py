"""Attention and position embeddings."""

from onnxfuse.ops import flops
from onnxfuse.ops.definitions import attention
from onnxfuse.ops.inputs import Indices, Length, data
from onnxfuse.ops.registry import Operator, Trait

__all__ = ["Attention", "CausalConvWithState", "LinearAttention", "RotaryEmbedding"]

Attention = Operator(
    "Attention",
    Trait.ATTENTION,
    flops=flops.attention,
    inputs=data("Q", "K", "V", "attn_mask", "past_key", "past_value") | {"nonpad_kv_seqlen": Length("K", -2)},
    definition=attention.onnx_attention,
)

RotaryEmbedding = Operator(
    "RotaryEmbedding",
    Trait.KEEPS_SHAPE,
    inputs=data("X", "cos_cache", "sin_cache") | {"position_ids": Indices("cos_cache", 0)},
    definition=attention.onnx_rotary_embedding,
)

LinearAttention = Operator("LinearAttention", Trait.OPAQUE)
CausalConvWithState = Operator("CausalConvWithState", Trait.OPAQUE)
