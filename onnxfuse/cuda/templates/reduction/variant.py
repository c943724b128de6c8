"""Variants of the kernels for reductions."""

from dataclasses import dataclass

from onnxfuse.cuda.planning.variant import Variant


@dataclass(frozen=True)
class RowVariant(Variant):
    """Constants of plans with reductions; 0 = those of the costs."""

    row_threads: int = 0
    """Threads per block for rows processed by at most a warp."""
    row_segment: int = 0
    """Bytes that the lanes of a row fetch contiguously before each takes a second vector; 512 = whole warps."""
    warp_elements: int = 0
    """Row elements per lane, if a warp processes one or several rows."""
    block_elements: int = 0
    """Row elements per thread, if a block processes a row."""
    held_bytes: int = 0
    """Bytes of raw operands that a thread of a row kernel may hold in registers."""
    long_elements: int = 0
    """Row elements per thread, if two blocks of 512 threads share a multiprocessor; 1 = never."""
    column_threads: int = 0
    """Threads of a block that reduces across contiguous elements; 0 = 128 or 256; 512 if there would be too few blocks.

    128 and 256: norm over 96 channels of NCHW 61% and 55% of copy bandwidth, a mean over 512 rows 84% and 80%; softmax
    over 21 channels 60% and 72%.
    """
    column_in_flight: int = 0
    """Bytes of input that a thread fetches ahead while it walks across contiguous elements."""
    shifted: int = 1
    """1: rows of odd length use wide accesses aligned to memory; 0: accesses as narrow as divide the row.

    Residual + LayerNormalization over 197 columns 85% of copy bandwidth, without it 66%; softmax 89% and 79%.
    """
    width: int = 0
    """Elements per vector; 0 = by the element types."""
    min_blocks: int = 0
    """Minimum resident blocks per multiprocessor for the compiler (__launch_bounds__); 0 = its own choice."""
