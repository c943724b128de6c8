"""Measured sizes of the scan template; their files say what was measured."""

from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.planning.arch import Arch


@dataclass(frozen=True)
class ScanCosts:
    """Sizes by which a scan is partitioned."""

    threads: int
    """Threads per block."""
    steps: int
    """Vectors along the axis that a thread holds in a strided scan."""
    busy: int
    """Threads per multiprocessor below which several share a column."""
    fewest_across: int
    """Minimum adjacent vectors of a block in a strided scan."""


def costs_of(arch: Arch) -> ScanCosts:
    """Return the sizes of the scan template on an architecture."""
    return tables.section(arch.name, "scan", ScanCosts)
