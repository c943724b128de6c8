"""Measured costs of reductions; their files say what was measured."""

from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.variant import one_at_a_time
from onnxfuse.cuda.templates.reduction.variant import RowVariant


@dataclass(frozen=True)
class GroupCosts:
    """Sizes by which the group template's partition is chosen."""

    most_across: int
    """Maximum adjacent vectors, and threads per block."""
    most_width: int
    """Maximum elements of a vector, each with moments in registers."""
    threads: int
    """Threads per block, with vectors stacked accordingly."""
    blocks: int
    """Blocks of that size per multiprocessor."""
    bytes_in_flight: int
    """Input bytes in flight per thread."""
    kept_bytes_in_flight: int
    """The same if the input is resident."""
    least_places: int
    """Minimum positions per thread for which another block is worth combining its results."""
    shared_bytes: int
    """Maximum shared memory of a block's results, by group."""
    held_segment: int
    """Minimum contiguous bytes per block of the column template."""
    held_threads: int
    held_bytes: int
    """Its threads, and the bytes each of them holds."""
    least_kept: int
    most_kept: int


@dataclass(frozen=True)
class ColumnCosts:
    """Sizes and shares by which strided reductions are partitioned."""

    shared_bytes: int
    """Maximum shared memory for partial results."""
    held_bytes: int
    """Raw operands that a thread holds."""
    fewest_threads: int
    most_parts: int
    few_columns: int
    busy_threads: int
    cluster_share: float
    large_share: float
    walk_blocks: int
    walk_threads: int
    walk_segment: int
    walk_rows: int
    least_rows: int


@dataclass(frozen=True)
class RowCosts:
    """Sizes by which a row is partitioned."""

    loop_threads: int
    """Threads of a block that iterates over its row."""
    loop_bytes_in_flight: int
    """Input bytes in flight, per thread that iterates over its row."""
    held_bytes_at_max_threads: int
    """Maximum raw operand bytes per thread of a block of 1024."""
    long_threads: int
    long_blocks: int
    long_held_bytes: int
    """Threads of a block of a long row, such blocks per multiprocessor, and raw operand bytes per thread."""
    crowded_bytes: int
    """Raw operand bytes per thread of shifted rows above which registers are limited explicitly."""
    small_elements: int
    """Row elements per thread for small tensors, as long as a block's threads suffice."""
    read_segments: int
    """Divisor of the segment bytes from which shifted, read-only rows use second vectors."""


@dataclass(frozen=True)
class Candidates:
    """Values of each constant of the variants that lead to other plans."""

    row_threads: tuple[int, ...]
    row_segment: tuple[int, ...]
    warp_elements: tuple[int, ...]
    block_elements: tuple[int, ...]
    long_elements: tuple[int, ...]
    shifted: tuple[int, ...]


def row(arch: Arch) -> RowCosts:
    """Return the costs of reductions along contiguous elements on an architecture."""
    return tables.section(arch.name, "reduction.row", RowCosts)


def usual(arch: Arch) -> RowVariant:
    """Return the constants of plans that no variant changes."""
    return tables.section(arch.name, "reduction.usual", RowVariant)


def candidates(arch: Arch) -> tuple[RowVariant, ...]:
    """Return the variants worth measuring, each with one constant varied."""
    return one_at_a_time(RowVariant, tables.section(arch.name, "reduction.candidates", Candidates))


def column(arch: Arch) -> ColumnCosts:
    """Return the costs of reductions across contiguous elements on an architecture."""
    return tables.section(arch.name, "reduction.column", ColumnCosts)


def group(arch: Arch) -> GroupCosts:
    """Return the costs of norms over groups of channels on an architecture."""
    return tables.section(arch.name, "reduction.group", GroupCosts)
