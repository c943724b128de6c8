"""Variants of the scan template's kernel."""

from dataclasses import dataclass

from onnxfuse.cuda.planning.variant import Variant


@dataclass(frozen=True)
class ScanVariant(Variant):
    """Constants of plans of running sums."""

    width: int = 0
    """Elements per vector; 0 = by the element types."""
    min_blocks: int = 0
    """Minimum resident blocks per multiprocessor for the compiler (__launch_bounds__); 0 = its own choice."""
