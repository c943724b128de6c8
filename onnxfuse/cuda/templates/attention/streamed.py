"""Attention kernel for any length: keys and values are streamed step by step; its source does not depend on lengths."""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.cuda.planning import launch_plan, limits
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.attention.costs import costs_of
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from onnxfuse.cuda.templates.attention.work import LENGTHS, AttentionProblem, lengths, tiled_kernel
from onnxfuse.symbolic.branching import least, smaller
from onnxfuse.symbolic.element_types import UnsupportedError


def plan(mine: AttentionProblem, aligned: bool, arch: Arch, tuning: AttentionVariant) -> LaunchPlan:
    """Return the launch plan for any number of queries and keys."""
    queries = tuning.queries or choose(mine, arch)
    most = 1 if mine.parts.integers is None or not _holds(queries, mine) else queries.passes
    if queries.step % 16 or not 1 <= queries.passes <= most:
        raise UnsupportedError(
            f"{queries.step} keys at a time in {queries.passes} passes, expected a multiple of 16 in {most}"
        )
    if _stages(queries) < 2 or shared_bytes(queries, mine) > arch.isa.shared_bytes:
        raise UnsupportedError(f"{_stages(queries)} stages of {queries.step} keys, {shared_bytes(queries, mine)} bytes")
    blocks = -(-mine.queries // (rows_of(queries) * queries.passes))
    grid = mine.batch * mine.parts.heads * blocks
    if grid >= limits.INDICES or mine.queries >= limits.INDICES or mine.keys >= limits.INDICES:
        raise UnsupportedError(
            f"{grid} blocks for {mine.queries} queries and {mine.keys} keys, expected less than 2^31"
        )
    return LaunchPlan(
        kernel=_kernel(mine, queries, aligned, tuning.min_blocks or resident_blocks(queries, mine)),
        grid=(grid, 1, 1),
        block=(queries.warps * 32, 1, 1),
        shared_bytes=shared_bytes(queries, mine),
        parameters=launch_plan.packed(lengths(mine, blocks), 64),
        output_shapes=mine.output_shapes,
        extremes=grid * queries.warps if mine.leaves_extremes else None,
    )


def ways(mine: AttentionProblem) -> tuple[Queries, ...]:
    """Return the possible partitions of the queries among blocks, those with the most queries first.

    With two query tiles a warp loads each key from shared memory only once for both; beyond 64 elements their sums
    would not fit the registers, beyond 32 with a bias per key, and beyond 128 the scores of 64 keys would not. For
    float32 a thread holds twice as many words of its queries, and a step needs twice the shared memory: half as many
    keys at a time. Beyond 128 elements 32 queries and two stages of 16 keys and values fit the 99 KB of the smallest
    GPUs.
    """
    if mine.parts.to_tf32:
        if mine.size > 128:
            return (Queries(2, 1, 1, 16, streamed=1),)
        pairs = (Queries(4, 2, 1, 32, streamed=1),) if mine.size <= 64 and not mine.is_bias_by_query else ()
        return (*pairs, *(Queries(w, 1, 1, 32, streamed=1) for w in (4, 2)))
    if mine.parts.integers is not None:
        step = 128 if mine.size <= 64 else 64 if mine.size <= 128 else 32
        return tuple(Queries(w, 1, p, step, streamed=1) for w, p in ((4, 2), (4, 1), (2, 1)))
    if mine.size <= (64 if mine.bias is None else 32) and not mine.is_bias_by_query:
        return tuple(Queries(w, t, 1, 64, streamed=1) for w, t in ((4, 2), (4, 1), (2, 1)))
    return tuple(Queries(w, 1, 1, 64 if mine.size <= 128 else 32, streamed=1) for w in (8, 4, 2))


def choose(mine: AttentionProblem, arch: Arch) -> Queries:
    """Return the partition with the most queries per block that leaves enough blocks for the GPU, each more than half
    full; else the smallest. The smallest has more stages if all blocks are resident at once with them, too."""
    heads, splits = mine.batch * mine.parts.heads, ways(mine)

    def fills(split: Queries) -> bool:
        rows = rows_of(split) * split.passes
        enough = 2 * heads * -(-mine.queries // rows) >= 3 * arch.sm_count
        return enough and mine.queries > rows // 2

    chosen = least(splits, lambda split: -rows_of(split) * split.passes, fills) or splits[-1]
    return _deeper(chosen, mine, arch) if chosen == splits[-1] else chosen


def _deeper(queries: Queries, mine: AttentionProblem, arch: Arch) -> Queries:
    """Return a partition with more stages, if there are so many steps and all blocks are resident with them, too.

    Otherwise blocks that come later hide the latency of copies, of which more are resident with less shared memory.
    """
    if not mine.parts.to_tf32 or not bool(mine.keys > 2 * queries.step):
        return queries
    deep = replace(queries, stages=costs_of(arch).stages)
    resident = smaller(arch.isa.shared_bytes // shared_bytes(deep, mine), resident_blocks(deep, mine))
    blocks = mine.batch * mine.parts.heads * -(-mine.queries // (rows_of(deep) * deep.passes))
    return deep if bool(blocks <= resident * arch.sm_count) else queries


def candidates(mine: AttentionProblem, arch: Arch) -> tuple[Queries, ...]:
    """Return other partitions of the queries among blocks and warps."""
    if not mine.parts.to_tf32 or mine.size > 64:
        return ways(mine)
    deep = tuple(replace(split, stages=costs_of(arch).stages) for split in ways(mine))
    # Four warps could not hold the scores of 64 keys in registers in addition to their biases.
    return (*ways(mine), *deep, *(Queries(w, 1, 1, 64, streamed=1) for w in ((8, 4) if mine.bias is None else (8,))))


def rows_of(queries: Queries) -> int:
    """Return the queries per block at a time."""
    return queries.warps * queries.tiles * 16


def _holds(queries: Queries, mine: AttentionProblem) -> bool:
    """Return whether the queries of a warp are register-resident."""
    return holds(mine, queries.tiles)


def holds(mine: AttentionProblem, tiles: int) -> bool:
    """Return whether so many tiles of queries per warp fit the registers: up to 64 per thread."""
    return tiles * mine.padded * mine.parts.element_bytes <= 512


def _stages(queries: Queries) -> int:
    """Return the steps of keys and values in shared memory at a time."""
    return queries.stages or 2


def shared_bytes(queries: Queries, mine: AttentionProblem) -> int:
    """Return the shared memory of a block: stages of keys and values with rows padded by 16 bytes, their bias, and the
    queries unless they are register-resident."""
    row = mine.padded * mine.parts.element_bytes + 16
    return _stages(queries) * queries.step * (2 * row + 4) + (0 if _holds(queries, mine) else rows_of(queries) * row)


def resident_blocks(queries: Queries, mine: AttentionProblem) -> int:
    """Return the resident blocks per multiprocessor, given the registers for the sums and scores of a thread."""
    registers = queries.tiles * (mine.size + queries.step // 2) + (32 if mine.is_bias_by_query else 0)
    most = 96 if mine.parts.integers is None else 128
    return max(
        limits.REGISTERS // (queries.warps * 32 * (128 if registers <= 64 else 168 if registers <= most else 255)), 1
    )


# ---- source generation


def _kernel(mine: AttentionProblem, queries: Queries, aligned: bool, min_blocks: int) -> KernelSource:
    facts = {
        "WARPS": queries.warps, "TILES": queries.tiles, "PASSES": queries.passes, "STEP": queries.step,
        "THREADS": queries.warps * 32, "KEY_ROWS": 0, "HELD": _holds(queries, mine), "ALIGNED": aligned,
        "RING": _stages(queries),
    }  # fmt: skip
    return tiled_kernel(mine, facts, f"long long {', '.join(LENGTHS)};", min_blocks)
