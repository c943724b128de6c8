"""Variants of the kernels for elementwise work and data movement."""

from dataclasses import dataclass

from onnxfuse.cuda.planning.variant import Variant


@dataclass(frozen=True)
class PointwiseVariant(Variant):
    """Constants of plans without reductions; 0 = those of the costs."""

    pointwise_threads: int = 0
    """Threads per block of the pointwise kernel."""
    mapped_threads: int = 0
    """The same if each thread reads inputs through index maps."""
    bytes_in_flight: int = 0
    """Bytes of input that a thread of the pointwise kernel loads before using any; more if accesses are narrow or index
    arithmetic is expensive."""
    width: int = 0
    """Elements per vector; 0 = by the element types."""
    min_blocks: int = 0
    """Minimum resident blocks per multiprocessor for the compiler (__launch_bounds__); 0 = its own choice."""
