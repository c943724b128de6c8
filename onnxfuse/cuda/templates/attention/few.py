"""Split-KV attention kernel for few queries (decode): blocks share the keys of a head."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.codegen.emit import access
from onnxfuse.codegen.emit.access import Pointer
from onnxfuse.codegen.emit.entry import entry_point, typed
from onnxfuse.codegen.emit.source import CLUSTER, DEVICE, MMA_SYNC, KernelSource, generated, identifier, template
from onnxfuse.cuda.isa.isa import FRAGMENT
from onnxfuse.cuda.planning import launch_plan, limits
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.attention.costs import costs_of, split_times
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from onnxfuse.cuda.templates.attention.work import AttentionProblem, common_constants, named, pointers
from onnxfuse.symbolic.branching import larger, smaller
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.traced_numbers import selected

QUERIES = STEP = FRAGMENT
"""Maximum queries per head of 16-bit elements, as more fill tiles of their own; keys per step of a warp."""


def takes(mine: AttentionProblem, arch: Arch) -> bool:
    """Return whether this kernel is used for so many queries and keys; only it supports growing caches."""
    cost = costs_of(arch).few
    least = cost.least_keys_float32 if mine.parts.to_tf32 else cost.least_keys
    return mine.parts.grows or (can(mine) and mine.keys >= least and bool(_are_few(mine, arch)))


def _are_few(mine: AttentionProblem, arch: Arch) -> bool:
    """Return whether queries are so few that their keys are better shared by warps.

    Of float32 all that fill the GPU once: 1x12x128x64 with a mask 6.0 us, by warps that have all keys each 6.4 (H200,
    2026-11).
    """
    return mine.queries <= QUERIES or (mine.parts.to_tf32 and heads_of(mine) <= arch.sm_count)


def heads_of(mine: AttentionProblem) -> int:
    """Return the tiles of 16 queries, of all heads of keys."""
    return mine.batch * (mine.parts.heads // mine.parts.k.group) * -(-mine.queries * mine.parts.k.group // 16)


def can(mine: AttentionProblem) -> bool:
    """Return whether the kernel supports an attention: a warp holds 16 queries, and a mask must be an input."""
    parts = mine.parts
    return (
        not (parts.causal or parts.windows or mine.also or parts.integers) and parts.k.group == parts.v.group
        and mine.size * parts.element_bytes <= 512
    )  # fmt: skip


def plan(mine: AttentionProblem, aligned: bool, arch: Arch, tuning: AttentionVariant) -> LaunchPlan:
    """Return the launch plan for any number of queries and keys."""
    if not can(mine):
        raise UnsupportedError("a causal mask, windows or wide heads of few queries")
    if mine.parts.grows and not 1 <= mine.queries <= QUERIES:
        raise UnsupportedError(f"caches beside {mine.queries} queries, expected 1 to {QUERIES}")
    tiles, heads = -(-mine.queries * mine.parts.k.group // 16), heads_of(mine)
    chosen = tuning.queries or choose(mine, heads, arch)
    stages = stages_of(mine, chosen.warps, arch)
    wanted = chosen.parts or parts_to_fill(mine, heads, chosen.warps, arch)
    span = span_of(mine, wanted, chosen.warps)
    together = costs_of(arch).few.cluster
    cluster = together if chosen.parts == together and clusters(mine, heads, chosen.warps, stages, arch) else 1
    parts = cluster if cluster > 1 else larger(-(-mine.keys // span), 1)
    if heads * parts >= limits.INDICES or mine.keys >= limits.INDICES:
        raise UnsupportedError(f"{heads * parts} blocks for {mine.keys} keys, expected less than 2^31")
    split = bool(cluster == 1 and parts > 1)
    ring = ring_of(span // (chosen.warps * STEP), stages)
    counters = -(-heads // 4) * 4  # words: the data that follows starts at a 16-byte boundary
    words = (mine.queries, mine.keys, mine.past, span, parts, tiles, counters, *(mine.bias or (0, 0, 0, 0)))
    return LaunchPlan(
        kernel=_kernel(
            mine,
            chosen.warps,
            ring,
            aligned,
            split,
            cluster,
            tuning.min_blocks or resident_blocks(mine, chosen.warps, stages, arch),
        ),
        grid=(heads * parts, 1, 1),
        block=(chosen.warps * 32, 1, 1),
        shared_bytes=shared_bytes(mine, chosen.warps, ring.stages),
        parameters=launch_plan.packed(words, 64),
        output_shapes=mine.output_shapes,
        scratch_bytes=4 * counters + heads * parts * record_bytes(mine) if split else 0,
        counter_bytes=4 * counters if split else 0,
        extremes=heads * parts * chosen.warps if mine.leaves_extremes and not split else None,
    )


def choose(mine: AttentionProblem, heads: int, arch: Arch, beside: int = 0) -> Queries:
    """Return how many warps share the keys of a block: all of a multiprocessor if each then has keys of its own.

    `beside`: bytes of a block's shared memory in addition to keys and values.

    Results of fewer blocks are combined faster. float16, 2026-11, 16 heads of 128 on 4 of keys, microseconds from
    memory, warps in blocks of a head: batch 8, 1024 keys 8 in 4 10.1, 4 in 8 11.2; 4, 8192 keys 8 in 8 22.0, 4 in 16
    23.2; 1, 16384 keys 8 in 32 15.4, 4 in 32 17.1; but 1, 1024 keys, cache written 8 in 8 8.8, 4 in 16 8.5.
    """
    cost = costs_of(arch)
    warps = cost.few.warps
    all_of_them, several = (
        next((w for w in ways if shared_bytes(mine, w, 2) + beside <= arch.shared_bytes), 0)
        for ways in ((warps,), (warps // 2, warps // 4, warps // 8))
    )
    if mine.queries > QUERIES:  # a block takes all keys: one kernel for any number of them
        return Queries(all_of_them or several, 1, 1, STEP, parts=1)
    if clusters(mine, heads, warps, 2, arch, beside) and mine.keys <= cost.together_keys:
        return Queries(warps, 1, 1, STEP, parts=cost.few.cluster)
    enough = heads <= arch.sm_count and mine.keys >= warps * STEP * parts_to_fill(mine, heads, warps, arch)
    chosen = Queries(all_of_them if all_of_them and enough else several, 1, 1, STEP)
    whole = Queries(all_of_them, 1, 1, STEP, parts=1)
    if not all_of_them or mine.parts.to_tf32:
        return chosen
    return whole if bool(_split_time(mine, heads, whole, arch) < _split_time(mine, heads, chosen, arch)) else chosen


def _split_time(mine: AttentionProblem, heads: int, queries: Queries, arch: Arch) -> float:
    """Return the estimated microseconds that depend on how many blocks share the keys of a head: to fetch those of the
    blocks of a multiprocessor, and to combine results."""
    times = split_times(arch)
    parts = queries.parts or parts_to_fill(mine, heads, queries.warps, arch)
    span = span_of(mine, parts, queries.warps)
    size = 2 * -(-heads * -(-mine.keys // span) // arch.sm_count) * span * mine.size * mine.parts.element_bytes
    combine: float = selected(span < mine.keys, times.combine, 0.0)
    return size / 1e6 * times.fetch + combine


def span_of(mine: AttentionProblem, parts: int, warps: int) -> int:
    """Return the keys of a block: whole steps of its warps."""
    return larger(-(-mine.keys // (parts * warps * STEP)), 1) * warps * STEP


def clusters(mine: AttentionProblem, heads: int, warps: int, stages: int, arch: Arch, beside: int = 0) -> bool:
    """Return whether clusters can share the keys, with the clusters of all heads resident at once."""
    pieces = 16 * mine.size // 2 * 16  # bytes that the other blocks read
    fits = shared_bytes(mine, warps, stages) + pieces + beside <= arch.shared_bytes
    cost = costs_of(arch)
    small = bool(heads * cost.few.cluster <= arch.sm_count * cost.together_share)
    return arch.isa.cluster >= cost.few.cluster and fits and small


def parts_to_fill(mine: AttentionProblem, heads: int, warps: int, arch: Arch) -> int:
    """Return how many blocks per head fill the GPU."""
    resident = resident_blocks(mine, warps, 2, arch)
    return larger(smaller(resident * arch.sm_count // larger(heads, 1), costs_of(arch).few.most_parts), 1)


def resident_blocks(mine: AttentionProblem, warps: int, stages: int, arch: Arch) -> int:
    """Return how many blocks share a multiprocessor."""
    return max(min(costs_of(arch).few.warps // warps, arch.shared_bytes // shared_bytes(mine, warps, stages)), 1)


def candidates(mine: AttentionProblem, arch: Arch) -> tuple[Queries, ...]:
    """Return other partitions of the keys among blocks and warps."""
    return tuple(
        Queries(warps, 1, 1, STEP, parts=parts)
        for warps in (2, 4, 8) for parts in (1, 4, 8, 16, 32)
        if shared_bytes(mine, warps, 2) <= arch.shared_bytes and warps * STEP * parts < mine.keys + warps * STEP
    )  # fmt: skip


def stages_of(mine: AttentionProblem, warps: int, arch: Arch) -> int:
    """Return the pipeline stages of a warp: three if that does not reduce the resident blocks, else two."""
    resident = resident_blocks(mine, warps, 2, arch)
    return 3 if resident * shared_bytes(mine, warps, 3) <= arch.shared_bytes else 2


@dataclass(frozen=True)
class Ring:
    """Steps of keys and values that a warp has in shared memory."""

    stages: int
    whole: bool
    """Whether they are all steps that a warp has, which are copied before the first is multiplied."""


def ring_of(steps: int, stages: int) -> Ring:
    """Return the ring of warps that have so many steps: a single one needs no room for another, so that blocks of the
    kernels ahead and behind have some on the same multiprocessor.

    Together with the cache on its way to L2 before, an attention of 16 heads of 128 on 4 of keys, 1,023 cached, takes
    about 2 us less in a step of LLaMA: of 4 layers it took 8 us less than its products explain (H200, 2026-12).
    """
    return Ring(1, True) if steps <= 1 else Ring(stages, False)


def shared_bytes(mine: AttentionProblem, warps: int, stages: int) -> int:
    """Return the shared memory of a block: keys and values of its warps, with rows padded by 16 bytes, or their
    records."""
    ring = stages * 2 * STEP * (mine.padded * mine.parts.element_bytes + 16)
    return warps * max(ring, record_bytes(mine))


def record_bytes(mine: AttentionProblem) -> int:
    """Return the size of a Record: 16 rows of floats padded by eight, and two scalars per row."""
    return 16 * (mine.size + 8 + 2) * 4


# ---- source generation


def _kernel(
    mine: AttentionProblem, warps: int, ring: Ring, aligned: bool, split: bool, cluster: int, min_blocks: int
) -> KernelSource:
    entry, extremes = identifier(mine.op.name), mine.leaves_extremes and not split
    facts = {
        "WARPS": warps, "TILES": 1, "STEP": STEP, "THREADS": warps * 32, "STAGES": ring.stages,
        "WHOLE": ring.whole, "HELD": True,
        "SPLIT": split, "CLUSTER": cluster, "GROWS": mine.parts.grows, "ALIGNED": aligned, "EXTREMES": extremes,
    } | {f"{name}_HEADS_FIRST": operand.heads_first for name, operand in named(mine.parts)}  # fmt: skip
    caches = (("k", mine.parts.k.cache), ("v", mine.parts.v.cache))
    grown = [
        Pointer(kind, f"{name}_{of}", "nullptr" if cache is None else argument.format(cache))
        for name, cache in caches
        for kind, of, argument in (("const E", "new", "in{0.new}"), ("E", "all", "out{0.output}"))
    ]
    fields = (*pointers(mine), *grown, access.scratch(used=split or extremes))
    near = f"  bring_cache_near({{{typed(f.pointer for f in fields)}}}, p);\n" if mine.parts.grows else ""
    return KernelSource(
        entry,
        (
            template(DEVICE),
            template("include/memory.cuh"),
            template("include/extremes.cuh"),
            *(template(f) for f in MMA_SYNC),
            template("include/last.cuh"),
            template(CLUSTER),
            generated(entry, common_constants(mine, facts) + access.pointers(fields)),
            template("attention/rows.cuh"),
            template("attention/steps.cuh"),
            template("attention/records.cuh"),
            template("attention/few.cu"),
            generated(entry, entry_point(entry, "attend", mine.op, fields, min_blocks, cluster, near)),
        ),
    )
