"""Measured sizes of the general kernel; their files say what was measured."""

from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.planning.arch import Arch


@dataclass(frozen=True)
class GeneralCosts:
    """Sizes of its launches."""

    threads: int
    """Threads per block."""
    blocks: int
    """Maximum blocks per multiprocessor: beyond that a thread processes more than one element."""


def costs_of(arch: Arch) -> GeneralCosts:
    """Return the sizes of the general kernel on an architecture."""
    return tables.section(arch.name, "general", GeneralCosts)
