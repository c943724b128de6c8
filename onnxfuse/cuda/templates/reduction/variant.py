"""Variants of the kernels for reductions."""

from dataclasses import dataclass

from onnxfuse.cuda.planning.variant import Variant


@dataclass(frozen=True)
class RowVariant(Variant):
    """Constants of plans with reductions.

    Figures: float16, tensors of 64 MB and more, H200, 2026-11 (`python -m bench.kernels.bandwidth
    --sweep NAME=VALUES`).
    """

    row_threads: int = 128
    """Threads per block for rows processed by at most a warp."""
    row_segment: int = 128
    """Bytes that the lanes of a row fetch contiguously before each takes a second vector; 512 = whole warps.

    Softmax over 197 columns, share of copy bandwidth: 128 89%, 256 74%, 512 62%; over 256 columns 96%, 128 or 512.
    """
    warp_elements: int = 40
    """Row elements per lane, if a warp processes one or several rows.

    40 and not 32: rows just above 1024 columns stay within a warp. Softmax over 1025 columns 96% against 65%.
    """
    block_elements: int = 16
    """Row elements per thread, if a block processes a row."""
    held_bytes: int = 256
    """Bytes of raw operands that a thread of a row kernel may hold in registers."""
    long_elements: int = 64
    """Row elements per thread, if two blocks of 512 threads share a multiprocessor; 0 = disabled.

    Residual + LayerNormalization over 16384 columns: 97% of copy bandwidth, without it 82%. Groups of 32768 elements:
    89%, in a cluster of two such blocks with 32 elements per thread 61%.
    """
    column_threads: int = 0
    """Threads of a block that reduces across contiguous elements; 0 = 128 or 256; 512 if there would be too few blocks.

    128 and 256: norm over 96 channels of NCHW 61% and 55% of copy bandwidth, a mean over 512 rows 84% and 80%; softmax
    over 21 channels 60% and 72%.
    """
    column_in_flight: int = 128
    """Bytes of input that a thread fetches ahead while it walks across contiguous elements."""
    shifted: int = 1
    """1: rows of odd length use wide accesses aligned to memory; 0: accesses as narrow as divide the row.

    Residual + LayerNormalization over 197 columns 85% of copy bandwidth, without it 66%; softmax 89% and 79%.
    """
    width: int = 0
    """Elements per vector; 0 = by the element types."""
    min_blocks: int = 0
    """Minimum resident blocks per multiprocessor for the compiler (__launch_bounds__); 0 = its own choice."""
