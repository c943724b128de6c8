"""Launch plans of the gemm template: matrix products with everything pointwise after them in one kernel."""

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxfuse.kernels import launch_plan, limits
from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.ir import types
from onnxfuse.kernels.ir.program import Apply
from onnxfuse.kernels.ir.strides import Shape
from onnxfuse.kernels.ir.types import UnsupportedError
from onnxfuse.kernels.launch_plan import Block, LaunchPlan, TensorMap, Tile, Tuning
from onnxfuse.kernels.templates.conv.window import Places
from onnxfuse.kernels.templates.gemm import cpp as gemm_cpp
from onnxfuse.kernels.templates.gemm import prologue_cpp, sm80
from onnxfuse.kernels.templates.gemm.body import (  # fmt: skip
    ROW_BYTES,
    Anatomy,
    Problem,
    anatomy,
    group_kind,
    kind_of,
    operand_kind,
    output_shapes,
    placed,
    problem,
)
from onnxfuse.kernels.templates.gemm.cpp import Work
from onnxfuse.kernels.templates.template import Extents
from onnxfuse.model.fused import FusedOp, Slot

ARCH = "sm_90a"
"""The architecture that the fast kernel is written for: Hopper, with its warpgroup products and bulk copies."""
SHARED_LIMIT = 227 * 1024
"""Shared memory of a block on Hopper, bytes."""
MOST = 2**31
"""Rows, columns and terms of a product; the kernels count them by 32 bits, as the library does."""

# ---- the plans


def plan(op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, tuning: Tuning) -> LaunchPlan:
    """Return how to run `op` on inputs of these shapes: on the tensor cores where they take its sizes and pointers."""
    work, chosen = _work(op, input_shapes), tuning.block
    parts, size = work.parts, work.size
    if aligned and chosen is None and tensor_cores(work, arch):
        of_work = tuning.tile or _choose(work, arch)
        if isinstance(of_work, Tile):
            return _sm90(work, of_work, arch)
        chosen = of_work
    if arch.number >= sm80.LEAST and sm80.takes(size):
        return sm80.plan(work, aligned, chosen, arch)
    if size.batch is not None or parts.products[0].turned or parts.prologue is not None:
        raise UnsupportedError(f"a batch, or a left factor [k, m] or computed, on {arch.name}")
    return _plain(work)


def _work(op: FusedOp, input_shapes: tuple[Shape, ...]) -> Work:
    outputs = output_shapes(op, input_shapes)
    parts = placed(anatomy(op), op, input_shapes)
    size = problem(parts, input_shapes)
    if max(size.m, size.n, size.k) >= MOST:
        raise UnsupportedError(f"a product of [{size.m}, {size.k}] by [{size.k}, {size.n}], expected less than 2^31")
    return Work(op, parts, size, _kinds(parts, size, input_shapes), outputs)


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the body of `op` is the better choice on `arch`, None where the kernel is."""
    if (reason := sm80.refuses(arch)) is not None:
        return reason
    parts = anatomy(op)
    if parts.to_tf32 and not arch.tf32:
        return "the kernel rounds float32 to TF32, and use_tf32 is 0"
    return None


def reads(shape: Extents, full: Extents) -> str | None:
    """Return why the kernel does not read an operand of `shape` beside a product of shape `full`, else None."""
    return None if operand_kind(shape, full) else "lies across the rows and columns of the product"


def reads_before(shape: Extents, full: Extents) -> str | None:
    """Return why the kernels do not compute a left factor of shape `full` from an operand of `shape`, else None."""
    read = operand_kind(shape, full) is not None or group_kind(shape, full) is not None
    return None if read else "lies across the rows and terms of the left factor"


def tensor_cores(work: Work, arch: Arch) -> bool:
    """Return whether Hopper's kernel runs products of this size, layout and number on `arch`."""
    parts, size = work.parts, work.size
    if (
        arch.name != ARCH
        or _map_count(work) > limits.TENSOR_MAPS
        or size.n % 8
        or 0 in (size.m, size.n, size.k)
        or size.batch is not None
        or parts.products[0].turned
    ):
        return False
    if parts.to_tf32 and not parts.products[0].transposed:
        return False
    if parts.prologue is not None and not _fetched_alike(parts):
        return False
    if size.places is None:
        return size.k % 8 == 0
    return size.places.shape[-1] % 8 == 0 and size.places.slides_fast()


def _fetched_alike(parts: Anatomy) -> bool:
    """Return whether the copy engine can lay out what the left factor is computed from as it would that one."""
    size = types.TYPES[parts.dtype].size
    return parts.prologue is not None and all(types.TYPES[t].size == size for t in parts.prologue.cell_types)


def _steps(size: Problem, terms: int) -> int:
    """Return how often so many terms are fetched: of a window, the channels of one element at a time."""
    if size.places is None:
        return -(-size.k // terms)
    return math.prod(size.places.kernel) * -(-size.places.shape[-1] // terms)


PLAIN_THREADS = 256


def _plain(work: Work) -> LaunchPlan:
    size = work.size
    return LaunchPlan(
        kernel=gemm_cpp.plain(work, PLAIN_THREADS),
        grid=(-(-size.m * size.n // PLAIN_THREADS), 1, 1),
        block=(PLAIN_THREADS, 1, 1),
        shared_bytes=0,
        parameters=launch_plan.packed((*gemm_cpp.source_fields(size), *work.store_words, size.m, size.n, size.k), 32),
        output_shapes=work.output_shapes,
    )


def _sm90(work: Work, tile: Tile, arch: Arch) -> LaunchPlan:
    size = work.size
    if not _takes_columns(work, replace(tile, n=tile.n * work.first_operand)):
        raise UnsupportedError(f"a tile of {tile} for {size.n} columns")
    if not _has_registers(work.parts, tile, tile.n * work.first_operand):
        raise UnsupportedError(f"a tile of {tile} beside a warpgroup that computes the left factor")
    stages = _stages(work, tile)
    rows, columns = -(-size.m // (tile.m * tile.cluster)), -(-size.n // tile.n)
    together = tile.cluster * tile.split
    count = rows * columns * len(work.parts.lanes)
    clusters = count if tile.split > 1 else min(count, arch.sm_count // together)
    threads = _threads(work.parts, tile)
    return LaunchPlan(
        kernel=gemm_cpp.sm90(work, threads, tile, stages, _left_rows(size, tile)),
        grid=(clusters * together, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=_shared_bytes(work, tile, stages),
        parameters=launch_plan.packed(
            (
                *gemm_cpp.source_fields(size),
                *work.store_words,
                *work.group_words,
                size.m,
                size.n,
                _steps(size, work.parts.terms),
                rows,
                columns,
                size.k,
            ),
            32,
        ),
        output_shapes=work.output_shapes,
        tensor_maps=_maps(work, tile),
    )


REGISTERS, PRODUCT_REGISTERS = 65536, 26
"""Of a multiprocessor; and of a thread, what a warpgroup product takes beside its sums (ptxas, CUDA 13.0)."""


def _threads(parts: Anatomy, tile: Tile) -> int:
    """Return the threads of a block: of the teams, of those that fetch, and of those that compute the left factor."""
    return 128 * (tile.warpgroups * tile.teams + 1 + (parts.prologue is not None))


def _has_registers(parts: Anatomy, tile: Tile, columns: int) -> bool:
    """Return whether one product of so many columns fits the registers that each thread is launched with."""
    launched = REGISTERS // _threads(parts, tile) // 8 * 8
    return parts.prologue is None or columns // 2 + PRODUCT_REGISTERS <= launched


@dataclass(frozen=True)
class Cost:
    """Microseconds of a tile: measured on an H200, float16, bias + GELU, 2026-11, over 24 sizes."""

    launch: float
    """Where a multiprocessor takes one tile: all but the products."""
    step: float
    """The same: 64 terms."""
    several: float
    """Where it takes several tiles, and the card runs into its power limit: 64 terms."""
    finish: float
    """The same: all else, of each tile."""
    light: float
    """The same for a body of few instructions: bias, residual, ReLU."""


COSTS = {
    Tile(128, 32, 1): Cost(3.2, 0.170, 0.180, 0.60, 0.30),
    Tile(256, 32, 1): Cost(3.6, 0.310, 0.320, 1.00, 0.40),
    Tile(256, 32, 1, warpgroups=2): Cost(3.6, 0.310, 0.320, 1.00, 0.40),
    Tile(256, 32, 1, warpgroups=2, teams=1): Cost(3.6, 0.310, 0.320, 1.20, 0.60),
    Tile(64, 64, 1): Cost(2.6, 0.126, 0.160, 0.60, 0.30),
    Tile(64, 128, 1): Cost(3.4, 0.195, 0.265, 0.60, 0.30),
    Tile(128, 64, 1): Cost(3.3, 0.210, 0.216, 0.60, 0.30),
    Tile(64, 128, 1, teams=1): Cost(3.4, 0.190, 0.285, 0.75, 0.40),
    Tile(128, 64, 1, warpgroups=2, teams=1): Cost(3.2, 0.205, 0.221, 1.03, 0.50),
    Tile(128, 128, 1, warpgroups=2, teams=1): Cost(3.7, 0.317, 0.361, 1.98, 0.82),
    Tile(128, 128, 1): Cost(4.0, 0.357, 0.379, 1.19, 0.37),
    Tile(128, 128, 1, warpgroups=2): Cost(4.2, 0.357, 0.385, 1.20, 0.40),
    Tile(128, 128, 2): Cost(4.2, 0.357, 0.345, 1.90, 0.80),
    Tile(128, 192, 1, warpgroups=2, teams=1): Cost(3.7, 0.526, 0.593, 1.88, 0.92),
    Tile(128, 192, 1): Cost(3.9, 0.548, 0.594, 3.00, 0.00),
    Tile(192, 128, 1, warpgroups=3, teams=1): Cost(3.0, 0.585, 0.608, 1.70, 0.97),
    Tile(192, 192, 1, warpgroups=3, teams=1): Cost(4.3, 0.800, 0.940, 1.53, 0.28),
    Tile(256, 128, 1, warpgroups=2, teams=1): Cost(4.5, 0.700, 0.700, 3.30, 2.00),
    Tile(128, 256, 1, warpgroups=2, teams=1): Cost(4.5, 0.700, 0.820, 2.30, 1.10),
}
"""What the choice is made from, and what is tuned over. The columns of all products of a gate count together.

Those of 32 columns are for windows, whose rows come more slowly than a matrix's: about twice the times here. The
choice is within 4% of the fastest tile in 24 convolutions of at most 32 filters, float16 and float32 (2026-11-22).

Not here, since they won nowhere: wider clusters of these tiles, 64x192, 64x256, two blocks of one warpgroup on a
multiprocessor (1024x1024x1024 8.3 us, 6.6 for one).
"""
TF32_COSTS = {
    **COSTS,
    Tile(128, 64, 1): Cost(3.3, 0.210, 0.233, 0.60, 0.30),
    Tile(128, 64, 1, warpgroups=2, teams=1): Cost(2.7, 0.205, 0.221, 1.03, 0.50),
    Tile(128, 128, 1): Cost(4.0, 0.357, 0.379, 1.01, 0.37),
    Tile(256, 128, 1, warpgroups=2, teams=1): Cost(4.9, 0.700, 0.700, 3.30, 2.00),
}
"""The same of float32, 32 terms a step. Over 79 products and convolutions of ResNet-50, BERT and ViT (2026-11-21) the
choice takes 0.3% more time than the best tile of each, at worst 14%; by float16's own table 2.5%, at worst 35%."""
LIGHT = frozenset({"add", "sub", "mul", "neg", "relu", "max", "min", "at_least", "at_most", "clip"})
"""Operations that the compiler schedules well beside 192 accumulators of a thread. Beside GELU it computes one element
after the other: 4096x3072x768 takes 39.7 us, 36.9 with 128; with bias alone 30.3 and 31.9."""
LIGHT_SAVES = 0.5
"""Microseconds by which a light body is done sooner, where a multiprocessor takes one tile."""
LAUNCH = 2.4
"""Microseconds before the first product and after the last one, beside several tiles."""
SHARE, BESIDE = 30_000, 0.1
"""Bytes that a multiprocessor writes, and reads of a residual, in a microsecond while all do, 4 TB/s in all, and what
each tile takes besides: few terms are multiplied in less. 64 terms, 32x56x56 rows, 256 columns, a residual: 128x192
40.0 us, 128x128 33.0."""
SHARED_FROM = 4
"""Tiles for each multiprocessor from which sharing a factor between two blocks pays: 4096x4096x4096 (eight) 223 us, 245
without; 6304x768x768 (three) 20.3 and 19.0."""
FEW_ROWS = 128
"""Rows up to which the kernel for sm_80, whose blocks take 16, may be the faster one: 1x768x768 3.3 us, 4.0 by a tile;
128x768x768 3.3 and 4.2; 16x5632x2048 6.0 and 6.9; 128x3072x768 5.6 and 4.4."""
NEAR = 1.6
"""The fastest tile of each of 61 products and convolutions was estimated at 1.51 times the least estimate or below."""
SPLIT_FROM = 24
"""Steps of 64 terms from which splitting them is tried: 1x768x768 (twelve) 4.0 us, split or not."""
SPLITS = (2, 3, 4, 6)
CLUSTERED = 7 / 8
"""Share of the multiprocessors that the blocks of split tiles may take: clusters leave some over. 49x2048x1024 of
float32, 32 tiles: in two 6.6 us, in three 6.6, in four, 128 blocks on 132 multiprocessors, 9.9."""
GATHER = (0.8, 0.08)
"""Microseconds to add up a split tile: once, and for each warp's sums of each block. Tiles of 64x64, 768x3072:
16 rows 5.2 us in four, 8.6 whole; 128 rows 6.4 and 8.7. By the barrier of the cluster 4.8 and 6.0."""


def _light(parts: Anatomy) -> bool:
    program = parts.lanes[0].program
    return all(v.op in LIGHT for i in program.live() if isinstance(v := program.values[i], Apply))


def tiles(op: FusedOp, input_shapes: tuple[Shape, ...]) -> list[Tile]:
    """Return the tiles that `op` can be computed in, with the columns of each product."""
    work = _work(op, input_shapes)
    return [replace(t, n=t.n // work.first_operand) for t in _fitting(work)]


def _fitting(work: Work) -> list[Tile]:
    """Return the tiles that fit and are not much too large, with the columns of all products of a gate."""
    accumulated = work.first_operand
    narrow = accumulated == 1 and gemm_cpp.output_bytes(work.parts) == 2 and work.parts.prologue is None
    tiles = [
        tile
        for tile in COSTS
        if _takes_columns(work, tile) and (narrow or tile.m * tile.n // (tile.warpgroups * 128) <= 128)
    ]
    tiles = [t for t in tiles if _has_registers(work.parts, t, t.n)]
    fitting = [t for t in tiles if _most_stages(work, replace(t, n=t.n // accumulated)) >= LEAST_STAGES]
    rows, columns = -(-work.size.m // 64) * 64, -(-work.size.n // 64) * 64 * accumulated
    return [t for t in fitting if t.m * t.cluster <= 2 * rows and t.n <= 2 * columns] or fitting


def _takes_columns(work: Work, tile: Tile) -> bool:
    """Return whether the columns of a tile are whole chunks, or less than one that no other tile stands beside."""
    if tile.n % 64:
        windows = work.size.places is not None or work.parts.products[0].transposed
        return windows and work.first_operand == 1 and work.size.n <= tile.n
    return tile.n % (64 * work.first_operand) == 0


def chosen(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> Tile | Block:
    """Return the tile that the plan takes on its own, or the block of the kernel for sm_80."""
    return _choose(_work(op, input_shapes), arch)


def _choose(work: Work, arch: Arch) -> Tile | Block:
    """Return the tile with the least estimated time; the block of the other kernel where few rows take that less."""
    tile, time = _tile(work, arch)
    if work.size.m > FEW_ROWS or work.size.places is not None:
        return tile
    block = sm80.choose(work.parts, work.size, arch)
    return block if sm80.microseconds(block, work.parts, work.size, arch) < time else tile


def _tile(work: Work, arch: Arch) -> tuple[Tile, float]:
    """Return the tile with the least estimated time, and the time."""
    estimated = _estimated(work, arch)
    if not estimated:
        raise UnsupportedError(f"{work.first_operand} products in one body")
    best = min(estimated, key=lambda tile: estimated[tile])
    return replace(best, n=best.n // work.first_operand), estimated[best]


def _estimated(work: Work, arch: Arch) -> dict[Tile, float]:
    """Return the microseconds of each tile that fits, split where they are few."""
    parts, size, accumulated = work.parts, work.size, work.first_operand
    steps, light = _steps(size, parts.terms), _light(parts)

    costs = TF32_COSTS if parts.to_tf32 else COSTS
    moved = gemm_cpp.output_bytes(parts) * (1 if work.staged is None else 2)

    def count(tile: Tile) -> int:
        across = -(-size.n * accumulated // tile.n) * len(parts.lanes)
        return -(-size.m // (tile.m * tile.cluster)) * across

    def microseconds(tile: Tile) -> float:
        cost, rounds = costs[replace(tile, teams=2, split=1) if tile.split > 1 else tile], 1
        if tile.split == 1:
            rounds = -(-count(tile) // (arch.sm_count // tile.cluster))
        if tile.cluster > 1 and rounds < SHARED_FROM:
            return math.inf
        computed = prologue_cpp.microseconds(parts, _left_rows(size, tile))
        if rounds > 1:
            one = steps * max(cost.several, computed) + (cost.light if light else cost.finish)
            # One team stores and then multiplies, of two the one while the other does.
            behind = 0.0 if tile.teams > 1 else steps * cost.several
            return LAUNCH + rounds * max(one, behind + BESIDE + tile.m * tile.n * moved / SHARE)
        once, each = GATHER
        warps = gemm_cpp.part_warps(tile, _left_rows(size, tile))
        gather = once + each * tile.split * warps if tile.split > 1 else 0.0
        return (
            cost.launch + -(-steps // tile.split) * max(cost.step, computed) + gather - (LIGHT_SAVES if light else 0.0)
        )

    splits = [s for s in _splits(steps) if count(SMALLEST) * s <= arch.sm_count * CLUSTERED] if accumulated == 1 else []
    tiles = [*_fitting(work), *(replace(SMALLEST, teams=1, split=s) for s in splits)]
    return {tile: microseconds(tile) for tile in tiles}


SMALLEST = Tile(64, 64, 1)


def _splits(steps: int) -> list[int]:
    return [s for s in SPLITS if steps >= SPLIT_FROM]


def candidates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[Tuning, ...]:
    """Return the tiles and the blocks of sm_80 that may be near the fastest; all ways to split where tiles are few."""
    work = _work(op, input_shapes)
    parts, size, accumulated = work.parts, work.size, work.first_operand
    hopper = tensor_cores(work, arch)
    blocks = sm80.worth_measuring(parts, size, arch) if size.places is None or not hopper else []
    if not hopper:
        return tuple(Tuning(block=block) for block in blocks)
    estimated = _estimated(work, arch)
    tiles = [t for t in _fitting(work) if estimated[t] <= NEAR * min(estimated.values())]
    few = -(-size.m // 64) * -(-size.n // 64) * len(parts.lanes) * 2 <= arch.sm_count
    if accumulated == 1 and few:
        tiles += [replace(SMALLEST, teams=1, split=s) for s in _splits(_steps(size, parts.terms))]
    fitting = (Tuning(tile=replace(t, n=t.n // accumulated)) for t in tiles)
    return (*fitting, *(Tuning(block=block) for block in blocks))


def _kinds(parts: Anatomy, size: Problem, input_shapes: tuple[Shape, ...]) -> tuple[str, ...]:
    """Return how each operand of a lane lies in the output; the lanes agree."""
    found = {tuple(kind_of(input_shapes[i], size.full) for i in lane.operands) for lane in parts.lanes}
    if len(found) > 1:
        raise UnsupportedError("products side by side with operands of different shapes")
    return found.pop()


def _shared_bytes(work: Work, tile: Tile, stages: int) -> int:
    left = _left_rows(work.size, tile)
    matrices = 1 if work.parts.prologue is None else len(work.parts.prologue.cells)
    ring = stages * (matrices * -(-left * ROW_BYTES // 1024) * 1024 + work.first_operand * tile.n * ROW_BYTES)
    warps = 4 * tile.warpgroups * tile.teams
    buffers = 2 if work.staged is None else tile.m // (64 * tile.warpgroups) * -(-tile.n // 64)
    puts = warps * buffers * 16 * 64 * gemm_cpp.output_bytes(work.parts)
    part = tile.m * tile.n * work.first_operand * 4 // (4 * tile.warpgroups)
    parts = (tile.split - 1) * part * gemm_cpp.part_warps(tile, left)
    return 1024 + ring + puts + parts + (2 if work.parts.prologue is None else 3) * 8 * stages + 8 * warps


def _left_rows(size: Problem, tile: Tile) -> int:
    """Return the rows of the left factor that are fetched for a tile: no more than there are, but for windows."""
    return tile.m if size.places is not None else min(tile.m, max(-(-size.m // 8) * 8, 8))


LEAST_STAGES = 3
"""Stages of the ring below which a tile is not chosen: one is multiplied, one is free, one is on its way."""


def _most_stages(work: Work, tile: Tile) -> int:
    """Return how many stages of the ring fit, at most eight."""
    return max((s for s in range(1, 9) if _shared_bytes(work, tile, s) <= SHARED_LIMIT), default=0)


def _stages(work: Work, tile: Tile) -> int:
    """Return how many stages of the ring are taken; raises where not two fit."""
    stages = _most_stages(work, tile)
    if stages < 2:
        raise UnsupportedError(f"a tile of {tile.m} by {tile.n} does not fit the shared memory")
    return stages


# ---- what the copy engine is told


def _maps(work: Work, tile: Tile) -> tuple[TensorMap, ...]:
    """Return the maps in the order of `TensorMaps`."""
    op, parts, size, dtype, terms = work.op, work.parts, work.size, work.parts.dtype, work.parts.terms
    maps = _left_maps(parts, size, tile)
    for product in parts.products:
        if size.places is not None:
            maps.append(_filters_map(product.b, parts, size.n, size.places, tile))
        elif product.transposed:
            maps.append(_map(product.b, dtype, size.n, size.k, (terms, tile.n // tile.cluster), to_tf32=parts.to_tf32))
        else:
            maps.append(_map(product.b, dtype, size.k, size.n, (64, terms // tile.cluster), to_tf32=parts.to_tf32))
    for n, output in enumerate(() if work.stored else work.program.outputs):
        columns = ROW_BYTES // types.TYPES[output.dtype].size
        for lane in parts.lanes:
            whole = _map(len(op.inputs) + lane.outputs[n], output.dtype, size.m, size.n, (columns, 16))
            maps.append(_in_slot(whole, op.slot))
    if work.staged is not None:
        for lane in parts.lanes:
            position = lane.operands[work.staged - work.first_operand]
            staged = op.inputs[position]
            maps.append(_map(position, staged, size.m, size.n, (ROW_BYTES // types.TYPES[staged].size, 16)))
    return tuple(maps)


def _map_count(work: Work) -> int:
    """Return how many tensors the copy engine would be told of."""
    parts = work.parts
    left = 1 if parts.prologue is None else len(parts.prologue.cells)
    of_lane = (0 if work.stored else len(parts.lanes[0].outputs)) + (work.staged is not None)
    return left + len(parts.products) + of_lane * len(parts.lanes)


def _in_slot(whole: TensorMap, slot: Slot | None) -> TensorMap:
    """Return the map of a matrix that is some columns of a wider one."""
    if slot is None:
        return whole
    size = types.TYPES[whole.dtype].size
    return replace(whole, strides=(slot.total * size,), offset=slot.first * size)


def _left_maps(parts: Anatomy, size: Problem, tile: Tile) -> list[TensorMap]:
    """Return the map of the left factor, or those of the matrices that it is computed from."""
    pointer, dtype, box = parts.products[0].a, parts.dtype, (parts.terms, _left_rows(size, tile))
    if parts.prologue is not None:
        read = zip(parts.prologue.cells, parts.prologue.cell_types, strict=True)
        return [_map(i, t, size.m, size.k, box) for i, t in read]
    if size.places is None:
        return [_map(pointer, dtype, size.m, size.k, box, to_tf32=parts.to_tf32)]
    images, height, width, channels = size.places.shape
    whole = TensorMap(
        pointer,
        dtype,
        (channels, width, height, images),
        _strides((channels, width, height), dtype),
        box,
        size.places.window,
        to_tf32=parts.to_tf32,
    )
    return [whole]


def _filters_map(pointer: int, parts: Anatomy, count: int, places: Places, tile: Tile) -> TensorMap:
    elements, channels = math.prod(places.kernel), places.shape[-1]
    box, strides = (parts.terms, 1, tile.n // tile.cluster), _strides((channels, elements), parts.dtype)
    return TensorMap(pointer, parts.dtype, (channels, elements, count), strides, box, to_tf32=parts.to_tf32)


def _strides(extents: Sequence[int], dtype: int) -> tuple[int, ...]:
    """Return the bytes from one element to the next, of a contiguous tensor, but along the innermost dimension."""
    return tuple(itertools.accumulate(extents, operator.mul, initial=types.TYPES[dtype].size))[1:]


def _map(
    pointer: int, dtype: int, rows: int, columns: int, box: tuple[int, int], *, to_tf32: bool = False
) -> TensorMap:
    strides = (columns * types.TYPES[dtype].size,)
    return TensorMap(pointer, dtype, (columns, rows), strides, box, to_tf32=to_tf32)


MOST_BESIDE = (limits.TENSOR_MAPS - 1) // 2
"""Products of one input that Hopper's kernel takes, each a right factor and an output; more run by that for sm_80."""
