"""Sums of products: matrix products and convolutions."""

from onnxfuse.ops.registry import Entries, Trait, entries

ENTRIES: Entries = (
    *entries(
        "MatMul Gemm Conv ConvTranspose Einsum",
        Trait.CONTRACTION,
    ),
    *entries(
        "DeformConv Det",
        Trait.OPAQUE,
    ),
)
