"""Variants of the topk template's kernel."""

from dataclasses import dataclass

from onnxfuse.cuda.planning.variant import Variant


@dataclass(frozen=True)
class TopKVariant(Variant):
    """Constants of plans of TopK."""

    topk_warps: int = 0
    """Warps per row, a power of 2 up to 8; 0 = by how many rows there are."""
    topk_splits: int = 0
    """Blocks per row, a power of 2 up to 32: if more than 1, of 8 warps each; 0 = by how many rows there are."""
