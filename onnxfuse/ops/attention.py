"""Attention and position embeddings."""

from onnxfuse.ops.registry import Entries, Trait, entries

ENTRIES: Entries = (
    *entries(
        "Attention",
        Trait.ATTENTION,
    ),
    *entries(
        "RotaryEmbedding",
        Trait.KEEPS_SHAPE,
    ),
    *entries(
        "LinearAttention CausalConvWithState",
        Trait.OPAQUE,
    ),
)
