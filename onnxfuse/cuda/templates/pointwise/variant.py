"""Variants of the kernels for elementwise work and data movement."""

from dataclasses import dataclass

from onnxfuse.cuda.planning.variant import Variant


@dataclass(frozen=True)
class PointwiseVariant(Variant):
    """Constants of plans without reductions.

    Figures: float16, tensors of 64 MB and more, H200, 2026-11 (`python -m bench.kernels.bandwidth
    --sweep NAME=VALUES`).
    """

    pointwise_threads: int = 256
    """Threads per block of the pointwise kernel."""
    mapped_threads: int = 128
    """The same if each thread reads inputs through index maps: RoPE 98.6% of copy, 256 97.8%."""
    bytes_in_flight: int = 16
    """Bytes of input that a thread of the pointwise kernel loads before using any: one access.

    64, 32 and 16, us: bias + ReLU 33.8, 34.0, 33.1; bias + GELU 35.1, 33.6, 33.4; windows of Swin 33.7, 33.2, 32.9;
    channel shuffle 34.3, 33.5, 33.2. More if accesses are narrow or index arithmetic is expensive.
    """
    width: int = 0
    """Elements per vector; 0 = by the element types."""
    min_blocks: int = 0
    """Minimum resident blocks per multiprocessor for the compiler (__launch_bounds__); 0 = its own choice."""
