"""Attention kernel for many queries on Hopper: warpgroup products (wgmma), keys and values loaded by TMA."""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.codegen.emit import access
from onnxfuse.codegen.emit import entry as entries
from onnxfuse.codegen.emit.access import Pointer
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.source import (
    AMPERE,
    DEVICE,
    HOPPER,
    WARP_SPECIALIZED,
    KernelSource,
    generated,
    identifier,
    template,
)
from onnxfuse.cuda.isa import wgmma
from onnxfuse.cuda.isa.isa import SWIZZLED_BYTES
from onnxfuse.cuda.planning import launch_plan, limits
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan, TensorMapSpec
from onnxfuse.cuda.templates.attention.body import AttentionBody, AttentionOperand
from onnxfuse.cuda.templates.attention.costs import costs_of
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from onnxfuse.cuda.templates.attention.work import AttentionProblem, common_constants, named, pointers
from onnxfuse.symbolic import element_types, strides
from onnxfuse.symbolic.branching import smaller
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape
from onnxfuse.symbolic.traced_numbers import selected

PANEL = SWIZZLED_BYTES // 2
"""Columns of 16 bits in a TMA box: a row of a panel."""


def multiplies(parts: AttentionBody, arch: Arch) -> bool:
    """Return whether warpgroups of `arch` multiply such factors, values without a transposition."""
    instruction = arch.isa.wgmma(parts.factors) if parts.integers is None else None
    return instruction is not None and not instruction.k_major


def takes(mine: AttentionProblem, aligned: bool, arch: Arch) -> bool:
    """Return whether the kernel supports this attention on `arch`."""
    return (
        multiplies(mine.parts, arch) and aligned and not mine.parts.grows
        and bool(mine.keys > 0) and bool(mine.queries > 0) and _reads(mine)
    )  # fmt: skip


def _reads(mine: AttentionProblem) -> bool:
    """Return whether TMA can load the bias, if each query has its own."""
    if mine.bias is None or not mine.is_bias_by_query:
        return mine.also is None
    return bool(mine.bias[3] == 1) and bool(mine.keys % 8 == 0) and (mine.also is None or bool(mine.also[2] == 0))


def _by_key(mine: AttentionProblem) -> Shape | None:
    """Return the strides of a bias that is per key only; None if there is none."""
    return mine.also if mine.is_bias_by_query else mine.bias


def plan(
    mine: AttentionProblem, shapes: tuple[Shape, ...], aligned: bool, arch: Arch, tuning: AttentionVariant
) -> LaunchPlan:
    """Return the launch plan for any number of queries and keys."""
    if not takes(mine, aligned, arch):
        raise UnsupportedError(
            f"warpgroup products on {arch.name}, of float32, without keys or of rows that TMA does not read"
        )
    split = tuning.queries or choose(mine, arch)
    resident = tuning.min_blocks or resident_blocks(mine, split, arch)
    warpgroups = split.warps // 4
    rows = 64 * warpgroups
    blocks = -(-mine.queries // rows)
    count = mine.batch * mine.parts.heads * blocks
    if count >= limits.INDICES or mine.queries >= limits.INDICES or mine.keys >= limits.INDICES:
        raise UnsupportedError(
            f"{count} blocks for {mine.queries} queries and {mine.keys} keys, expected less than 2^31"
        )
    rings = _fitting(mine, split, resident, arch)
    if not rings:
        raise UnsupportedError(f"{split} and {resident} resident blocks do not fit the shared memory")
    stages, slots = rings[0]
    (by_batch, by_head, by_query, _), seen = mine.bias or (0, 0, 0, 0), _is_looked_through(mine)
    of_keys = _by_key(mine) or (0, 0, 0, 0)
    tiles, steps = -(-mine.queries // 64), -(-mine.keys // split.step)
    words = (mine.queries, mine.keys, count, blocks, mine.windows, by_batch, by_head, *of_keys, tiles, steps)
    launch = LaunchPlan(
        kernel=_kernel(mine, split, rings[0], seen, resident),
        grid=(smaller(count, resident * arch.sm_count), 1, 1),
        block=(_threads(split), 1, 1),
        shared_bytes=_shared_bytes(mine, split, stages, slots),
        parameters=launch_plan.packed(words, 64),
        output_shapes=mine.output_shapes,
        tensor_maps=_maps(mine, shapes, split),
    )
    if not seen:
        return launch
    count_seen = selected(by_batch == 0, 1, mine.windows if mine.parts.windows else mine.batch) * tiles * steps
    room = {"scratch_bytes": count_seen * SEEN_BYTES}
    first = LaunchPlan(
        kernel=_seen_kernel(mine, split),
        grid=(count_seen, 1, 1),
        block=(SEEN_WARPS * 32, 1, 1),
        shared_bytes=0,
        parameters=launch_plan.packed((mine.queries, mine.keys, count_seen, tiles, steps, by_batch, by_query), 64),
        output_shapes=mine.output_shapes,
    )
    return replace(first, **room, then=(replace(launch, **room),))


SEEN_BYTES, SEEN_WARPS = 16, 4
"""Bytes of mask statistics per 64 queries and step of keys; warps per block of the kernel that computes them."""


def _is_looked_through(mine: AttentionProblem) -> bool:
    """Return whether fully masked steps are determined by a preliminary kernel: for a bias that several heads read."""
    return mine.bias is not None and mine.is_bias_by_query and bool(mine.bias[1] == 0)


def ways(mine: AttentionProblem) -> tuple[Queries, ...]:
    """Return the possible partitions of the queries among blocks."""
    if mine.size > 128:
        return (Queries(8, 1, 1, 64, warpgroups=1),)
    shared = [(1, 64), (2, 128)] if mine.size > 64 else [(1, 64), (1, 128), (2, 128)]
    if mine.size <= 64 or not mine.is_bias_by_query:
        shared.append((3, 64))
    return tuple(Queries(4 * w, 1, 1, step, warpgroups=1, ahead=1) for w, step in shared)


def choose(mine: AttentionProblem, arch: Arch) -> Queries:
    """Return the preferred partition of the queries.

    Larger steps outweigh fewer resident blocks if keys are many, or if each block has a multiprocessor for itself:
    1x16x362x64 6.6 us, by 64 keys 8.0 (float16, H200, 2026-11-30).
    """
    splits, cost = ways(mine), costs_of(arch)
    if mine.size != mine.padded and cost.warpgroups.uneven in splits:
        return cost.warpgroups.uneven
    if len(splits) == 1:
        return splits[0]
    blocks = mine.batch * mine.parts.heads * -(-mine.queries // (16 * splits[0].warps))
    alone = splits[0].warps == splits[1].warps and bool(blocks <= arch.sm_count)
    return splits[1] if alone or bool(mine.keys >= cost.long) else splits[0]


def resident_blocks(mine: AttentionProblem, split: Queries, arch: Arch) -> int:
    """Return how many blocks share a multiprocessor: as many as its registers allow, if their rings fit."""
    most = 1 if split.warps > 4 else 3 if mine.size <= 64 and split.step <= 64 else 2
    return next((n for n in range(most, 1, -1) if _fitting(mine, split, n, arch)), 1)


def _threads(split: Queries) -> int:
    """Return the threads of a block: its consumer warpgroups and the producer."""
    return 32 * (split.warps + 4)


def _stage_bytes(mine: AttentionProblem, split: Queries) -> int:
    panels, rows = -(-mine.size // PANEL), 16 * split.warps
    bias = -(-split.step // PANEL) * rows * SWIZZLED_BYTES if mine.is_bias_by_query else 0
    added = split.step * 4 if _by_key(mine) is not None else 0
    return 2 * panels * split.step * SWIZZLED_BYTES + bias + added


def _shared_bytes(mine: AttentionProblem, split: Queries, stages: int, slots: int) -> int:
    """Return the shared memory of a block: queries of so many tiles, the ring, two words and three mbarriers
    per stage."""
    queries = -(-mine.size // PANEL) * 16 * split.warps * SWIZZLED_BYTES
    return 1024 + slots * (queries + 16) + stages * (_stage_bytes(mine, split) + 32)


def _fitting(mine: AttentionProblem, split: Queries, resident: int, arch: Arch) -> list[tuple[int, int]]:
    """Return the rings of which so many fit a multiprocessor, largest first."""
    most = (arch.shared_bytes + limits.RESERVED_BYTES) // resident - limits.RESERVED_BYTES
    rings = ((stages, tiles) for stages, tiles in costs_of(arch).warpgroups.rings)
    return [ring for ring in rings if _shared_bytes(mine, split, *ring) <= most]


# ---- tensor maps


def _maps(mine: AttentionProblem, shapes: tuple[Shape, ...], split: Queries) -> tuple[TensorMapSpec, ...]:
    """Return the tensor maps in the order of `TensorMaps`."""
    rows, parts = 16 * split.warps, mine.parts
    of = [(parts.q, mine.queries, rows), (parts.k, mine.keys, split.step), (parts.v, mine.keys, split.step)]
    maps = [_heads_map(mine, operand, length, box) for operand, length, box in of]
    if mine.is_bias_by_query:
        position = mine.biases[0]
        shape = shapes[position]
        # A bias per window has a single batch of windows.
        extents = strides.padded(shape[1:] if parts.windows else shape, 4)[::-1]
        maps.append(_map(position, parts.dtype, extents, (PANEL, rows, 1, 1)))
    return tuple(maps)


def _heads_map(mine: AttentionProblem, operand: AttentionOperand, length: int, rows: int) -> TensorMapSpec:
    """Return the tensor map of queries, keys or values: a box is a panel of some rows of a head."""
    heads = mine.parts.heads // operand.group
    if operand.heads_first:
        extents, box = (mine.size, length, heads, mine.batch), (PANEL, rows, 1, 1)
    else:
        extents, box = (mine.size, heads, length, mine.batch), (PANEL, 1, rows, 1)
    return _map(operand.position, mine.parts.dtype, extents, box)


def _map(pointer: int, dtype: int, extents: tuple[int, ...], box: tuple[int, ...]) -> TensorMapSpec:
    strides, line = list[int](), element_types.TYPES[dtype].size
    for n in extents[:-1]:
        line = line * n
        strides.append(line)
    return TensorMapSpec(pointer, dtype, extents, tuple(strides), box)


# ---- source generation


def _kernel(mine: AttentionProblem, split: Queries, ring: tuple[int, int], seen: bool, resident: int) -> KernelSource:
    entry, factors = identifier(mine.op.name), mine.parts.factors
    facts = {
        "WARPGROUPS": split.warps // 4, "TILES": 1, "STEP": split.step, "THREADS": _threads(split), "STAGES": ring[0],
        "QUERY_PLACES": ring[1], "HELD": False, "AHEAD": bool(split.ahead), "SEEN": seen,
        "KEYED": _by_key(mine) is not None, "WINDOWED": mine.parts.windows, "ALIGNED": True, "BESIDE": resident,
    } | {f"{name}_HEADS_FIRST": operand.heads_first for name, operand in named(mine.parts)}  # fmt: skip
    fields = (*pointers(mine), access.scratch(used=seen))
    names = ["q", "k", "v", *(["bias"] if mine.is_bias_by_query else [])]
    text = "".join(
        [
            "struct TensorMaps { TensorMap " + ", ".join(names) + "; };\n",
            "DEVICE void prefetch_tensor_maps(const TensorMaps& maps) {\n",
            *(f"  prefetch_tensor_map(&maps.{n});\n" for n in names),
            "}\n",
            "DEVICE const TensorMap* bias_map(const TensorMaps& maps) { return "
            f"{'&maps.bias' if 'bias' in names else 'nullptr'}; }}\n",
            wgmma.product(split.step, factors, right_rows=False, fours=True),
            wgmma.product(mine.size, factors, right_rows=True, regs=True, fours=True),
        ]
    )
    end = entries.kernel(
        entry, len(mine.op.inputs), len(mine.op.outputs), f"  attend({{{entries.typed(fields)}}}, maps, p);\n",
        bounds=f"KERNEL(THREADS, {resident})", more=("void* scratch, " if seen else "") + "TENSOR_MAPS maps",
    )  # fmt: skip
    return KernelSource(
        entry,
        (
            template(DEVICE),
            template(AMPERE),
            template("include/memory.cuh"),
            *map(template, (HOPPER, *WARP_SPECIALIZED)),
            generated(entry, common_constants(mine, facts) + access.pointers(fields)),
            template("attention/seen.cuh"),
            template("attention/rows.cuh"),
            generated(entry, text),
            template("attention/sm90.cu"),
            generated(entry, end),
        ),
    )


def _seen_kernel(mine: AttentionProblem, split: Queries) -> KernelSource:
    entry = identifier(mine.op.name)
    bias = Pointer("const E", "bias", f"in{mine.biases[0]}")
    fields = (bias, access.scratch(used=True))
    text = f"using E = {mine.parts.factors.stored};\n"
    text += f"constexpr int STEP = {split.step}, THREADS = {SEEN_WARPS * 32};\n" + access.pointers(fields)
    return KernelSource(
        entry,
        (
            template(DEVICE),
            template("include/memory.cuh"),
            generated(entry, text),
            template("attention/seen.cuh"),
            template("attention/seen.cu"),
            generated(entry, entry_point(entry, "find_seen", mine.op, fields, 0)),
        ),
    )
