"""Measured costs of reductions; their files say what was measured."""

from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.planning.arch import Arch


@dataclass(frozen=True)
class GroupCosts:
    """Sizes by which the group template's partition is chosen."""

    least_kept: int
    most_kept: int


@dataclass(frozen=True)
class ColumnCosts:
    """Sizes and shares by which strided reductions are partitioned."""

    few_columns: int
    busy_threads: int
    cluster_share: float
    large_share: float
    walk_blocks: int
    walk_threads: int
    walk_segment: int
    walk_rows: int
    least_rows: int


def column(arch: Arch) -> ColumnCosts:
    """Return the costs of reductions across contiguous elements on an architecture."""
    return tables.section(arch.name, "reduction.column", ColumnCosts)


def group(arch: Arch) -> GroupCosts:
    """Return the costs of norms over groups of channels on an architecture."""
    return tables.section(arch.name, "reduction.group", GroupCosts)
