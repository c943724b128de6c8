"""Attention kernel for short sequences: all keys and values of a head are resident in a block's shared memory."""

from __future__ import annotations

from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.attention.costs import costs_of
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from onnxfuse.cuda.templates.attention.work import LENGTHS, AttentionProblem, lengths, tiled_kernel
from onnxfuse.symbolic.branching import least
from onnxfuse.symbolic.element_types import UnsupportedError

LARGEST_SIZE = 128
"""Maximum elements per head: for wider ones few keys would fit the shared memory."""


def key_rows(keys: int) -> int:
    """Return the rows that so many keys occupy in shared memory: whole tiles of the tensor cores."""
    return -(-keys // 16) * 16


def shared_bytes(keys: int, size: int) -> int:
    """Return the shared memory of a block: keys and values of a head with rows padded by eight elements, and a bias per
    key."""
    return key_rows(keys) * (size + 9) * 4


def too_many(keys: int, size: int, arch: Arch) -> str | None:
    """Return why the keys and values of a head do not fit the shared memory of a block; None if they do."""
    if size > LARGEST_SIZE:
        return f"heads of {size} elements, expected at most {LARGEST_SIZE}"
    needed = shared_bytes(keys, size)
    if needed <= arch.shared_bytes:
        return None
    return (
        f"{keys} keys of {size} elements take {needed // 1024} KB, and do not fit the shared memory of a block on "
        f"{arch.name}, {arch.shared_bytes // 1024} KB"
    )


def plan(mine: AttentionProblem, aligned: bool, arch: Arch, tuning: AttentionVariant) -> LaunchPlan:
    """Return the launch plan; raises `UnsupportedError` if the keys do not fit."""
    if mine.parts.to_tf32:
        raise UnsupportedError("keys of float32 go by step by step, expected a way that is streamed")
    if mine.also is not None:
        raise UnsupportedError("a sum of two biases, expected a way that is streamed")
    if mine.size != mine.padded:
        raise UnsupportedError(f"heads of {mine.size} elements, expected a multiple of 16 or a way that is streamed")
    if (reason := too_many(mine.keys, mine.size, arch)) is not None:
        raise UnsupportedError(reason)
    queries = tuning.queries or choose(mine, arch)
    blocks = -(-mine.queries // (queries.warps * queries.tiles * queries.passes * 16))
    grid = mine.batch * mine.parts.heads * blocks
    if grid >= 2**31:
        raise UnsupportedError(f"{grid} blocks, expected fewer than 2^31")
    return LaunchPlan(
        kernel=_kernel(mine, queries, blocks, aligned, tuning.min_blocks or _resident(queries)),
        grid=(grid, 1, 1),
        block=(queries.warps * 32, 1, 1),
        shared_bytes=shared_bytes(mine.keys, mine.size),
        parameters=launch_plan.packed((0,), 32),
        output_shapes=mine.output_shapes,
        extremes=grid * queries.warps if mine.leaves_extremes else None,
    )


def choose(mine: AttentionProblem, arch: Arch) -> Queries:
    """Return the queries per block: as many as leave enough blocks for the GPU.

    A sequence slightly longer than four warps uses one more warp per 16 queries: 32x8x77x64 causal 5.0 us, in two
    blocks of four warps 6.8 (float16, H200, 2026-11). If they fit twice, two blocks are faster: 4x4x102x64 causal 2.9
    us, in one 3.7.
    """
    tiles, heads, cost = -(-mine.queries // 16), mine.batch * mine.parts.heads, costs_of(arch).resident
    warps = tiles if cost.warps < tiles < 2 * cost.warps and bool(2 * heads > arch.sm_count) else cost.warps
    rounds = max(-(-tiles // warps), 1)
    ways = [(-(-rounds // passes), passes) for passes in range(1, rounds + 1)]
    enough = least(
        ways, lambda one: (one[0] * one[1], one[0]), lambda one: heads * one[0] >= cost.blocks * arch.sm_count
    )
    _, passes = enough or ways[0]
    return Queries(warps, 1, passes, _step(mine, arch))


def _step(mine: AttentionProblem, arch: Arch) -> int:
    cost = costs_of(arch).resident
    most = cost.few_keys // 2 if key_rows(mine.keys) <= cost.few_keys else cost.step
    steps = max(-(-key_rows(mine.keys) // most), 1)
    return max(-(-key_rows(mine.keys) // steps // 16) * 16, 16)


def candidates(mine: AttentionProblem) -> tuple[Queries, ...]:
    """Return other partitions of the queries among blocks and warps."""
    tiles = -(-mine.queries // 16)
    return tuple(
        Queries(w, t, p, s)
        for w in (2, 4, 5, 7) for t in (1, 2) for p in (1, 2, 3, 4) for s in (32, 64, 112, 128)
        if w * t * p < tiles + w * t and t * s <= 128
    )  # fmt: skip


def _resident(queries: Queries) -> int:
    """Return the resident blocks per multiprocessor by register use: three of four warps."""
    return max(15 // (queries.warps * queries.tiles), 1)


# ---- source generation


def _kernel(mine: AttentionProblem, queries: Queries, blocks: int, aligned: bool, min_blocks: int) -> KernelSource:
    facts = {
        "WARPS": queries.warps, "TILES": queries.tiles, "PASSES": queries.passes, "STEP": queries.step,
        "THREADS": queries.warps * 32, "KEY_ROWS": key_rows(mine.keys), "HELD": True, "ALIGNED": aligned,
        "RING": 0,
    }  # fmt: skip
    fields = zip(LENGTHS, lengths(mine, max(blocks, 1)), strict=True)
    numbers = ", ".join(f"{name} = {value}" for name, value in fields)
    return tiled_kernel(mine, facts, f"static constexpr long long {numbers}; unsigned none;", min_blocks)
