"""Measured sizes of the recurrent template; their files say what was measured."""

from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.planning.arch import H200, Arch


@dataclass(frozen=True)
class RecurrentCosts:
    """Sizes by which a direction's cells are partitioned."""

    clusters: tuple[int, ...]
    """Possible cluster sizes per direction."""
    fragments: int
    """Target number of 16 by 16 weight tiles per block; beyond it more blocks share a direction."""
    most_warps: int
    """Maximum warps per block."""
    most_resident: int
    """Maximum register-resident weight tiles per warp; the others are in shared memory."""
    sequences: tuple[int, ...]
    """Possible sequences per cluster."""
    most_sequences: int
    """Maximum if weights are read from shared memory, once for every eight sequences."""


def costs_of(arch: Arch = H200) -> RecurrentCosts:
    """Return the sizes of the recurrent template on an architecture; by default where the GPU is not known."""
    return tables.section(arch.name, "recurrent", RecurrentCosts)
