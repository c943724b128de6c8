"""Measured costs of reductions; their files say what was measured."""

from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.planning.arch import Arch


@dataclass(frozen=True)
class GroupCosts:
    """Sizes by which the group template's partition is chosen."""

    least_kept: int
    most_kept: int


def group(arch: Arch) -> GroupCosts:
    """Return the costs of norms over groups of channels on an architecture."""
    return tables.section(arch.name, "reduction.group", GroupCosts)
