"""The gemm template on Hopper: selection of the tile, resource limits, the launch."""

import math
from dataclasses import replace

from onnxfuse.codegen.program.program import Apply
from onnxfuse.codegen.program.tables import instructions
from onnxfuse.cuda.isa.factors import ALIGNED, BFLOAT16, FLOAT16
from onnxfuse.cuda.isa.isa import SWIZZLED_BYTES, Copy
from onnxfuse.cuda.isa.sm_90 import SM_90A
from onnxfuse.cuda.isa.wgmma import REGISTERS as PRODUCT_REGISTERS
from onnxfuse.cuda.isa.wgmma import ROWS as PRODUCT_ROWS
from onnxfuse.cuda.planning import launch_plan, limits
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.gemm import costs, prologue_cpp, sm90_cpp, tensor_maps
from onnxfuse.cuda.templates.gemm import cpp as gemm_cpp
from onnxfuse.cuda.templates.gemm.body import LEAST_STAGES, Anatomy
from onnxfuse.cuda.templates.gemm.costs import TileCost, wgmma
from onnxfuse.cuda.templates.gemm.problem import GemmProblem
from onnxfuse.cuda.templates.gemm.variant import GemmTile
from onnxfuse.cuda.templates.gemm.work import GemmSource, chunk_bytes, output_bytes
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.branching import gcd, larger, least, merged, smaller
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.traced_numbers import selected

SHARED_LIMIT = SM_90A.shared_bytes


def takes(work: GemmSource, arch: Arch) -> bool:
    """Return whether Hopper's kernel supports products of this size, layout and number on `arch`."""
    parts, size = work.parts, work.size
    instruction = arch.isa.wgmma(parts.factors)
    if (
        instruction is None
        or (not work.op.tf32 and not instruction.keeps_float32)
        or Copy.TMA not in arch.isa.copies
        or tensor_maps.count(work) > limits.TENSOR_MAPS
        or gcd(ALIGNED, *size.widths) != ALIGNED
        or 0 in (size.m, size.k, *size.widths)
        or (size.batch is not None and (parts.prologue is not None or size.batch.count == 0))
        or parts.products[0].a_transposed
        or (parts.packed is not None and not _unpacks(parts))
        or (parts.precise and (parts.prologue is not None or sm90_cpp.slices(size, parts.terms) % 2))
    ):
        return False
    # TMA stores rows whose pitch is a multiple of 16 bytes; single bytes are not stored transposed.
    item = min(element_types.TYPES[o.dtype].size for o in work.program.outputs)
    if item == 1 and (work.stored or gcd(2 * ALIGNED, *size.widths) != 2 * ALIGNED):
        return False
    if instruction.k_major and not parts.products[0].transposed:
        return False
    if parts.prologue is not None and not _fetched_alike(parts):
        return False
    if size.window is None:
        # TMA requires row pitches that are multiples of 16 bytes. Factors stored [k, m] have any number of rows.
        line = parts.factors.line
        return size.pitch % line == 0 and (not parts.products[0].transposed or size.k % line == 0)
    # Rows of 16 bytes; groups of channels must be whole slices, because the next group follows.
    least = parts.factors.line if size.groups == 1 else parts.terms // sm90_cpp.SLICES
    return size.channels % least == 0 and tensor_maps.slides_fast(size.window)


def _unpacks(parts: Anatomy) -> bool:
    """Return whether the kernel reads the right factor's numbers of few bits."""
    assert parts.packed is not None
    packing = parts.packed.packing
    return (
        packing.bits in gemm_cpp.PAIRED_BITS
        and packing.block >= costs.PACKED_RUN
        and parts.factors in (FLOAT16, BFLOAT16)
        and parts.prologue is None
    )


def _fetched_alike(parts: Anatomy) -> bool:
    """Return whether TMA can lay out the prologue's inputs like the left factor itself."""
    size = parts.factors.bytes
    return parts.prologue is not None and all(element_types.TYPES[t].size == size for t in parts.prologue.cell_types)


def _steps(size: GemmProblem, terms: int) -> int:
    """Return the number of loads for so many terms: for a window, the channels of one element at a time."""
    if size.window is None:
        return -(-size.k // terms)
    step = terms * sm90_cpp.slices(size, terms) // sm90_cpp.SLICES
    return math.prod(size.window.kernel) * -(-size.channels // step)


def plan(work: GemmSource, tile: GemmTile, arch: Arch) -> LaunchPlan:
    size = work.size
    if not _takes_columns(work, replace(tile, n=tile.n * work.first_operand)):
        raise UnsupportedError(f"a tile of {tile} for {size.n} columns")
    if not _has_registers(work.parts, tile, tile.n * work.first_operand):
        raise UnsupportedError(f"a tile of {tile} beside a warpgroup that computes the left factor, or sums of a step")
    stages, rings = _stages(work, tile), sm90_cpp.rings(work.parts, tile)
    rows, together = -(-size.m // (tile.m * tile.cluster)), tile.cluster * tile.split
    count = rows * size.across(tile.n) * size.products
    clusters = count if tile.split > 1 else min(count, arch.sm_count // together)
    threads = _threads(work.parts, tile)
    return LaunchPlan(
        kernel=sm90_cpp.sm90(
            work, threads, tile, stages // rings, left_rows(size, tile), long=_is_long(work, tile, arch)
        ),
        grid=(clusters * together, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=_shared_bytes(work, tile, stages),
        parameters=launch_plan.packed(
            (
                *gemm_cpp.source_fields(size),
                *work.store_words,
                *work.group_words,
                *work.product_words,
                *size.side_words(tile.n),
                size.m,
                _steps(size, work.parts.terms),
                rows,
                size.k,
                size.lines,
            ),
            32,
        ),
        output_shapes=work.output_shapes,
        tensor_maps=tensor_maps.maps(work, tile, left_rows(size, tile)),
        extremes=None if work.extremes_of is None else clusters * together * 4 * tile.warpgroups * tile.teams,
    )


def _threads(parts: Anatomy, tile: GemmTile) -> int:
    """Return the threads of a block: consumer teams, producers, and warpgroups that compute part of a factor."""
    return 128 * (tile.warpgroups * tile.teams + 1 + sm90_cpp.computers(parts))


def _has_registers(parts: Anatomy, tile: GemmTile, columns: int) -> bool:
    """Return whether a product of so many columns fits the registers available per thread at launch, and all sums
    those that the producers leave."""
    computers, threads = sm90_cpp.computers(parts), _threads(parts, tile)
    launched = limits.REGISTERS // threads // 8 * 8
    if parts.factors.promoted_after:
        return sm90_cpp.part_sums(parts, tile, columns) is not None
    if not computers:
        return True
    left = threads * launched - 128 * (costs.KEPT_REGISTERS[0] + computers * costs.KEPT_REGISTERS[1])
    sums = tile.m // (64 * tile.warpgroups) * columns // 2
    return columns // 2 + PRODUCT_REGISTERS <= launched and (
        computers == 1 or sums + PRODUCT_REGISTERS <= left // (128 * tile.warpgroups * tile.teams)
    )


def _shared_bytes(work: GemmSource, tile: GemmTile, stages: int) -> int:
    rows = left_rows(work.size, tile)
    matrices = 1 if work.parts.prologue is None else len(work.parts.prologue.cells)
    rights = work.first_operand * (2 if work.parts.precise else 1)
    ring = stages * (matrices * -(-rows * SWIZZLED_BYTES // 1024) * 1024 + rights * tile.n * SWIZZLED_BYTES)
    warps = 4 * tile.warpgroups * tile.teams
    chunks = _chunks(tile)
    buffers = 2 if work.staged is None else chunks
    puts = warps * buffers * 16 * 64 * sum(chunk_bytes(o.dtype) for o in work.program.outputs)
    part = -(-chunks // tile.split) * 16 * 64 * work.first_operand * 4
    parts = (tile.split - 1) * part * sm90_cpp.part_warps(tile, rows)
    piece = sm90_cpp.piece_bytes(work)
    pieces = 16 + 8 * _steps(work.size, work.parts.terms) * piece if piece else 0
    return 1024 + ring + puts + parts + (3 if sm90_cpp.computers(work.parts) else 2) * 8 * stages + 8 * warps + pieces


def _chunks(tile: GemmTile) -> int:
    """Return how many chunks of 16 rows and 64 columns a warp finishes; blocks share those of a split-K tile."""
    return tile.m // (64 * tile.warpgroups) * -(-tile.n // 64)


def left_rows(size: GemmProblem, tile: GemmTile) -> int:
    """Return the rows of the left factor loaded per tile: limited to the existing ones, except for windows."""
    return tile.m if size.window is not None else smaller(tile.m, larger(-(-size.m // 8) * 8, 8))


def _most_stages(work: GemmSource, tile: GemmTile) -> int:
    """Return how many stages of the ring fit, at most eight."""
    return max((s for s in range(1, 9) if _shared_bytes(work, tile, s) <= SHARED_LIMIT), default=0)


def _stages(work: GemmSource, tile: GemmTile) -> int:
    """Return the number of stages used, of all rings; raises if not even two of each fit."""
    rings = sm90_cpp.rings(work.parts, tile)
    stages = _most_stages(work, tile) // rings * rings
    if stages < 2 * rings:
        raise UnsupportedError(f"a tile of {tile.m} by {tile.n} does not fit the shared memory")
    return stages


# ---- tile selection


LIGHT = frozenset({"add", "sub", "mul", "neg", "relu", "max", "min", "at_least", "at_most", "clip"})
"""Epilogue operations that the compiler schedules well in addition to 192 accumulators per thread. With GELU it
computes the elements sequentially: 4096x3072x768 takes 39.7 us, 36.9 with 128; with bias alone 30.3 and 31.9."""


def _light(work: GemmSource) -> bool:
    """Return whether the epilogue has few instructions, or they are counted, as those of 8-bit factors."""
    if work.parts.factors.bytes == 1:
        return True
    program = work.program
    return all(v.op in LIGHT for i in program.live() if isinstance(v := program.values[i], Apply))


def fitting(work: GemmSource) -> list[GemmTile]:
    """Return the tiles that fit and are not much too large, with the columns of all products of a gate."""
    tiles = [tile for tile in _tiles(work) if _is_staged(work, tile)]
    return [tile for tile in tiles if _is_near(work, tile)] or tiles


def _tiles(work: GemmSource) -> list[GemmTile]:
    """Return the tiles that divide the columns suitably, with sums that fit the registers."""
    narrow = work.first_operand == 1 and output_bytes(work.parts) == 2 and work.parts.prologue is None
    return [
        tile
        for tile in wgmma().tiles(work.parts)
        if _takes_columns(work, tile)
        and (work.parts.packed is None or tile.cluster == 1)
        and (narrow or tile.m * tile.n // (tile.warpgroups * 128) <= 128)
        and _has_registers(work.parts, tile, tile.n)
    ]


def _is_staged(work: GemmSource, tile: GemmTile) -> bool:
    """Return whether enough stages of a tile fit the shared memory."""
    least = max(LEAST_STAGES, 2 * sm90_cpp.rings(work.parts, tile))
    return _shared_bytes(work, replace(tile, n=tile.n // work.first_operand), least) <= SHARED_LIMIT


def _is_near(work: GemmSource, tile: GemmTile) -> bool:
    """Return whether a tile is not much larger than the product."""
    rows, columns = -(-work.size.m // 64) * 64, -(-work.size.n // 64) * 64 * work.first_operand
    return tile.m * tile.cluster <= 2 * rows and tile.n <= 2 * columns


def _takes_columns(work: GemmSource, tile: GemmTile) -> bool:
    """Return whether the columns of a tile are whole chunks, or rows of a right factor [n, k] that end within one.

    Then the last chunk overlaps the previous one, or a tile has all columns. For [k, n] such tiles would be loaded from
    the middle of 128-byte lines: 1568x768x3072 by 64x160 25 us, by 64x192 14.
    """
    transposed = work.parts.products[0].transposed
    if tile.n % 64 == 0:
        return tile.n % (64 * work.first_operand) == 0 and (tile.n <= limits.BOX or not transposed)
    alone = transposed and work.first_operand == 1
    return alone and (tile.n > 64 or work.size.n <= tile.n)


def choose(work: GemmSource, arch: Arch) -> tuple[GemmTile, float]:
    """Return the tile with the least estimated time, and that time."""

    def tries(tile: GemmTile) -> bool:
        if tile.split > 1:
            return _splits(work, arch, tile)
        return _is_near(work, tile) and _is_staged(work, tile)

    best = least([*_tiles(work), *shared(work.parts)], lambda tile: _chosen_by(work, tile, arch), tries)
    if best is None:
        raise UnsupportedError(f"{work.first_operand} products in one body")
    return replace(best, n=best.n // work.first_operand), _chosen_by(work, best, arch)


def _estimated(work: GemmSource, arch: Arch) -> dict[GemmTile, float]:
    """Return the microseconds of each tile that fits, with split-K if there are few."""
    tiles = [*fitting(work), *(tile for tile in shared(work.parts) if _splits(work, arch, tile))]
    return {tile: _chosen_by(work, tile, arch) for tile in tiles}


def _count(work: GemmSource, tile: GemmTile) -> int:
    """Return the number of tiles, those of a cluster counted together."""
    across = work.size.across(tile.n // work.first_operand)
    return -(-work.size.m // (tile.m * tile.cluster)) * across * work.size.products


def _microseconds(work: GemmSource, tile: GemmTile, arch: Arch, known: TileCost | None = None) -> float:
    """Return the estimated time of a tile, with the columns of all products of a gate; by its measured cost unless
    given another."""
    parts, size = work.parts, work.size
    steps, light = _steps(size, parts.terms), _light(work)
    moved = output_bytes(parts) + work.staged_bytes
    cost, rounds = known or _cost(parts, tile), 1
    if tile.split == 1:
        rounds = -(-_count(work, tile) // (arch.sm_count // tile.cluster))
    if tile.cluster > 1 and rounds < wgmma().shared_from:
        return math.inf
    computed = prologue_cpp.microseconds(parts, left_rows(size, tile), arch)
    if rounds > 1:
        step = larger(cost.several, _unaligned_bytes(work, tile) / wgmma().fetch_unaligned)
        one = steps * larger(step, computed) + (cost.light if light else cost.finish)
        # One team alternates between stores and products; two teams overlap them.
        behind = 0.0 if tile.teams > 1 else steps * step
        return wgmma().launch + rounds * larger(one, behind + wgmma().beside + tile.m * tile.n * moved / wgmma().store)
    added = tile.split * -(-_chunks(tile) // tile.split) * sm90_cpp.part_warps(tile, left_rows(size, tile))
    gather = wgmma().gather_once + wgmma().gather_each * added if tile.split > 1 else 0.0
    saved = wgmma().light_saves if light else 0.0
    # The compiler computes long epilogues one element after the other beside so many sums: see LIGHT.
    crowded = not light and tile.m * tile.n // (tile.warpgroups * 128) > 128
    slow = max(cost.finish - cost.light - wgmma().light_saves, 0.0) if crowded else 0.0
    return cost.launch + -(-steps // tile.split) * larger(cost.step, computed) + gather + slow - saved


def _chosen_by(work: GemmSource, tile: GemmTile, arch: Arch, known: TileCost | None = None) -> float:
    """Return the estimated time of a tile, whose warpgroups below the product's last row finish nothing."""
    rows, cost = smaller(tile.m, -(-work.size.m // PRODUCT_ROWS) * PRODUCT_ROWS), known or _cost(work.parts, tile)
    return _microseconds(work, tile, arch, known) - cost.finish * (1 - rows / tile.m)


def _unaligned_bytes(work: GemmSource, tile: GemmTile) -> int:
    """Return the bytes of a step whose lines begin inside a sector, of which more than they have are read."""
    size, item = work.size, work.parts.factors.bytes
    right = (size.k,) if work.parts.products[0].transposed else size.widths
    left_bytes: int = selected(size.pitch * item % limits.SECTOR_BYTES == 0, 0, tile.m * SWIZZLED_BYTES)
    whole = tile.n * SWIZZLED_BYTES // tile.cluster
    right_bytes: int = selected(gcd(*right) * item % limits.SECTOR_BYTES == 0, 0, whole)
    return left_bytes + right_bytes


def _cost(parts: Anatomy, tile: GemmTile) -> TileCost:
    """Return the measured cost of a tile; for 8-bit factors a light epilogue and the instructions of this one."""
    whole = _whole(parts, tile)
    cost = wgmma().tiles(parts)[whole]
    if parts.factors.bytes > 1:
        return cost
    epilogue = wgmma().instruction[whole] * instructions(parts.epilogues[0].program)
    return replace(cost, launch=cost.launch + epilogue, light=cost.light + epilogue)


def _is_long(work: GemmSource, tile: GemmTile, arch: Arch) -> bool:
    """Return whether a launch with this timed tile is long enough for a late dependent launch."""
    whole = replace(tile, n=tile.n * work.first_operand)
    timed = whole in wgmma().tiles(work.parts) or whole in shared(work.parts)
    return timed and bool(merged(lambda: _microseconds(work, whole, arch)) > wgmma().long)


def _whole(parts: Anatomy, tile: GemmTile) -> GemmTile:
    """Return the unsplit tile with the cost of a split one's products."""
    whole = replace(tile, split=1)
    return whole if whole in wgmma().tiles(parts) else replace(whole, teams=2)


def shared(parts: Anatomy) -> list[GemmTile]:
    """Return the tiles usable with split-K; for unrounded float32 only the smallest was tried."""
    return [tile for tile in wgmma().split if not parts.precise or (tile.m, tile.n) == (64, 64)]


def _splits(work: GemmSource, arch: Arch, tile: GemmTile) -> bool:
    """Return whether tiles are so few that split-K may be faster."""
    if work.first_operand > 1 or _steps(work.size, work.parts.terms) < wgmma().split_from:
        return False
    share = 1.0 if tile.split == 2 else wgmma().clustered
    return (
        _takes_columns(work, tile)
        and _has_registers(work.parts, tile, tile.n)
        and _is_near(work, tile)
        and _is_staged(work, tile)
        and _count(work, tile) * tile.split <= arch.sm_count * share
    )


def adding_alike(work: GemmSource, chosen: GemmTile, arch: Arch) -> list[GemmTile]:
    """Return the other tiles with bit-identical sums, fastest first; none for a split one."""
    if chosen.split > 1:
        return []
    tiles = sorted(fitting(work), key=lambda tile: _chosen_by(work, tile, arch))
    return [t for tile in tiles if (t := replace(tile, n=tile.n // work.first_operand)) != chosen]


def microseconds(work: GemmSource, tile: GemmTile, arch: Arch, cost: TileCost) -> float:
    """Return the estimated time of a tile, with the columns of each product, if it had this cost."""
    return _chosen_by(work, replace(tile, n=tile.n * work.first_operand), arch, cost)


def estimates(work: GemmSource, arch: Arch) -> dict[GemmTile, float]:
    """Return the estimated microseconds of the tiles that fit, with the columns of each product."""
    times = _estimated(work, arch)
    return {replace(t, n=t.n // work.first_operand): time for t, time in times.items() if time < math.inf}


def worth_measuring(work: GemmSource, arch: Arch) -> list[GemmTile]:
    """Return the tiles whose estimate is near the best, and all split-K factors if they are few."""
    estimated = _estimated(work, arch)
    tiles = [t for t in fitting(work) if estimated[t] <= wgmma().near * min(estimated.values())]
    tiles += [tile for tile in shared(work.parts) if _splits(work, arch, tile)]
    return [replace(t, n=t.n // work.first_operand) for t in tiles]
