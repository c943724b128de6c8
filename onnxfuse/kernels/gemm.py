"""Launch plans of the gemm template: matrix products with everything pointwise after them in one kernel."""

import itertools
import math
import operator
from collections.abc import Sequence

from onnxfuse.kernels import gemm_text, plans, types
from onnxfuse.kernels.anatomy import ROW_BYTES, Anatomy, Problem, anatomy, operand_kind, output_shapes, problem
from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.body import Apply
from onnxfuse.kernels.family import Extents, Family
from onnxfuse.kernels.gemm_text import Work
from onnxfuse.kernels.layout import Shape
from onnxfuse.kernels.plans import LaunchPlan, TensorMap, Tile, Tuning
from onnxfuse.kernels.types import UnsupportedError
from onnxfuse.kernels.window import MAX_STRIDE, Places
from onnxfuse.model.fused import FusedOp

ARCH = "sm_90a"
"""The architecture that the fast kernel is written for: Hopper, with its warpgroup products and bulk copies."""
SHARED_LIMIT = 227 * 1024
"""Shared memory of a block on Hopper, bytes."""

# ---- the plans


def plan(op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, tuning: Tuning) -> LaunchPlan:
    """Return how to run `op` on inputs of these shapes: on the tensor cores where they take its sizes and pointers."""
    parts = anatomy(op)
    outputs = output_shapes(op, input_shapes)
    size = problem(parts, input_shapes)
    kinds = _kinds(parts, size, input_shapes)
    work = Work(op, parts, size, kinds, outputs)
    if not aligned or not tensor_cores(size, arch):
        return _plain(work)
    return _sm90(work, tuning.tile or choose(parts, size, arch), arch)


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the body of `op` is the better choice on `arch`, None where the kernel is."""
    if arch.name != ARCH:
        return f"the product's kernel is made for {ARCH}, this GPU is {arch.name}"
    parts = anatomy(op)
    if parts.to_tf32 and not arch.tf32:
        return "the kernel rounds float32 to TF32, and use_tf32 is 0"
    strides = [max(p.sliding.strides) for p in parts.products if p.sliding is not None]
    return f"the copy engine takes steps of up to {MAX_STRIDE}" if any(s > MAX_STRIDE for s in strides) else None


def reads(shape: Extents, full: Extents) -> str | None:
    """Return why the kernel does not read an operand of `shape` beside a product of shape `full`, else None."""
    return None if operand_kind(shape, full) else "lies across the rows and columns of the product"


def tensor_cores(size: Problem, arch: Arch) -> bool:
    """Return whether the fast kernel runs a product of this size on `arch`."""
    if arch.name != ARCH or size.n % 8 or size.k == 0:
        return False
    if size.places is None:
        return size.k % 8 == 0
    return size.places.shape[-1] % 8 == 0 and size.places.slides_fast()


def _steps(size: Problem, terms: int) -> int:
    """Return how often so many terms are fetched: of a window, the channels of one element at a time."""
    if size.places is None:
        return -(-size.k // terms)
    return math.prod(size.places.kernel) * -(-size.places.shape[-1] // terms)


def _source(size: Problem) -> tuple[int, ...]:
    """Return the fields of the kernel's `Source`."""
    places = size.places
    if places is None:
        return ()
    _, height, width, channels = places.shape
    return (
        height, width, channels, *places.out, *places.strides, *places.begin, *places.dilations, places.kernel[1],
    )  # fmt: skip


PLAIN_THREADS = 256
SM90_THREADS = 384


def _plain(work: Work) -> LaunchPlan:
    size = work.size
    return LaunchPlan(
        kernel=gemm_text.plain(work, PLAIN_THREADS),
        grid=(-(-size.m * size.n // PLAIN_THREADS), 1, 1),
        block=(PLAIN_THREADS, 1, 1),
        shared_bytes=0,
        parameters=plans.packed((*_source(size), size.m, size.n, size.k), 32),
        output_shapes=work.output_shapes,
    )


def _sm90(work: Work, tile: Tile, arch: Arch) -> LaunchPlan:
    size = work.size
    stages = _stages(work, tile)
    rows, columns = -(-size.m // (tile.m * tile.cluster)), -(-size.n // tile.n)
    clusters = min(rows * columns * len(work.parts.lanes), arch.sm_count // tile.cluster)
    return LaunchPlan(
        kernel=gemm_text.sm90(work, SM90_THREADS, tile, stages),
        grid=(clusters * tile.cluster, 1, 1),
        block=(SM90_THREADS, 1, 1),
        shared_bytes=_shared_bytes(work, tile, stages),
        parameters=plans.packed((*_source(size), size.m, size.n, _steps(size, work.parts.terms), rows, columns), 32),
        output_shapes=work.output_shapes,
        tensor_maps=_maps(work, tile),
    )


STEP = {
    (64, 64): (0.13, 0.19), (64, 128): (0.17, 0.26), (128, 64): (0.19, 0.29), (128, 128): (0.29, 0.40),
    (128, 192): (0.56, 0.66),
}  # fmt: skip
"""Microseconds of a multiprocessor for 64 terms of a tile: where it takes one tile, and where it takes several.

By rows and columns, all products of a gate together. float16, H200, 2026-11: 128x768x3072, 4096x768x3072 (one tile);
512x5632x2048, 4096x2304x768, 4096x4096x4096 (several).
"""
LIGHT = frozenset({"add", "sub", "mul", "neg", "relu", "max", "min", "at_least", "at_most", "clip"})
"""Operations beside which the widest tile's 192 accumulators fit the registers: with bias 4096x768x3072 takes 29.4 us,
35.7 with 128 columns; with GELU it spills, 4096x3072x768 takes 42.3 us, 36.8 with 128 columns."""
FINISH = 1.5
"""Microseconds of a body that is not light, GELU, over the accumulators of a tile of 128 by 128."""
LAUNCH = 2.4
"""Microseconds before the first product and after the last one."""
SHARED_FROM = 4
"""Tiles for each multiprocessor from which sharing a factor between two blocks pays: 4096x4096x4096 (eight) 214 us, 247
without; 6304x768x768 (three) 15.8 and 15.1."""


def _light(parts: Anatomy) -> bool:
    program = parts.lanes[0].program
    return all(v.op in LIGHT for i in program.live() if isinstance(v := program.values[i], Apply))


def _fitting(parts: Anatomy) -> list[tuple[int, int]]:
    """Return the tiles beside whose accumulators the body fits the registers."""
    accumulated = len(parts.lanes[0].products)
    widest = 192 if _light(parts) and accumulated == 1 and gemm_text.output_bytes(parts) == 2 else 128
    return [s for s in STEP if s[1] <= widest and s[1] % (64 * accumulated) == 0]


def choose(parts: Anatomy, size: Problem, arch: Arch) -> Tile:
    """Return the tile with the least estimated time."""
    accumulated = len(parts.lanes[0].products)
    steps = _steps(size, parts.terms)

    def rounds(shape: tuple[int, int]) -> int:
        across = -(-size.n * accumulated // shape[1]) * len(parts.lanes)
        return -(-(-(-size.m // shape[0]) * across) // arch.sm_count)

    light = _light(parts)

    def microseconds(shape: tuple[int, int]) -> float:
        alone, among_others = STEP[shape]
        count = rounds(shape)
        finish = 0.0 if light else FINISH * shape[0] * shape[1] / (128 * 128)
        return LAUNCH + steps * (alone if count <= 1 else count * among_others) + count * finish

    fitting = _fitting(parts)
    if not fitting:
        raise UnsupportedError(f"{accumulated} products in one body")
    m, n = min(fitting, key=microseconds)
    return Tile(m, n // accumulated, 2 if (m, n) == (128, 128) and rounds((m, n)) >= SHARED_FROM else 1)


def candidates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[Tuning, ...]:
    """Return every tile that fits, alone and, where there are rows for it, two below each other."""
    parts = anatomy(op)
    accumulated, rows = len(parts.lanes[0].products), problem(parts, input_shapes).m
    tiles = [Tile(m, n // accumulated, c) for m, n in _fitting(parts) for c in (1, 2) if rows > m * (c - 1)]
    return tuple(Tuning(tile=tile) for tile in tiles)


def _kind(shape: Shape, full: Shape) -> str:
    kind = operand_kind(shape, full)
    if kind is None:
        raise UnsupportedError(f"an operand of shape {list(shape)} beside a product of shape {list(full)}")
    return kind


def _kinds(parts: Anatomy, size: Problem, input_shapes: tuple[Shape, ...]) -> tuple[str, ...]:
    """Return how each operand of a lane lies in the output; the lanes agree."""
    found = {tuple(_kind(input_shapes[i], size.full) for i in lane.operands) for lane in parts.lanes}
    if len(found) > 1:
        raise UnsupportedError("products side by side with operands of different shapes")
    return found.pop()


def _shared_bytes(work: Work, tile: Tile, stages: int) -> int:
    ring = stages * (tile.m + work.first_operand * tile.n) * ROW_BYTES
    buffers = 2 if work.staged is None else tile.m * tile.n // (64 * 64)
    puts = 8 * buffers * 16 * 64 * gemm_text.output_bytes(work.parts)
    return 1024 + ring + puts + 2 * 8 * stages + 8 * 8


def _stages(work: Work, tile: Tile) -> int:
    """Return how many stages of the ring fit; raises where it is not two."""
    stages = max((s for s in range(1, 9) if _shared_bytes(work, tile, s) <= SHARED_LIMIT), default=0)
    if stages < 2:
        raise UnsupportedError(f"a tile of {tile.m} by {tile.n} does not fit the shared memory")
    return stages


# ---- what the copy engine is told


def _maps(work: Work, tile: Tile) -> tuple[TensorMap, ...]:
    """Return the maps in the order of `TensorMaps`."""
    op, parts, size, dtype, terms = work.op, work.parts, work.size, work.parts.dtype, work.parts.terms
    maps = [_left_map(parts, size, tile)]
    for product in parts.products:
        if size.places is not None:
            maps.append(_filters_map(product.b, parts, size.n, size.places, tile))
        elif product.transposed:
            maps.append(_map(product.b, dtype, size.n, size.k, (terms, tile.n // tile.cluster), to_tf32=parts.to_tf32))
        else:
            maps.append(_map(product.b, dtype, size.k, size.n, (64, terms // tile.cluster), to_tf32=parts.to_tf32))
    for n, output in enumerate(work.program.outputs):
        columns = ROW_BYTES // types.TYPES[output.dtype].size
        for lane in parts.lanes:
            maps.append(_map(len(op.inputs) + lane.outputs[n], output.dtype, size.m, size.n, (columns, 16)))
    if work.staged is not None:
        for lane in parts.lanes:
            position = lane.operands[work.staged - work.first_operand]
            staged = op.inputs[position]
            maps.append(_map(position, staged, size.m, size.n, (ROW_BYTES // types.TYPES[staged].size, 16)))
    return tuple(maps)


def _left_map(parts: Anatomy, size: Problem, tile: Tile) -> TensorMap:
    pointer, dtype, box = parts.products[0].a, parts.dtype, (parts.terms, tile.m)
    if size.places is None:
        return _map(pointer, dtype, size.m, size.k, box, to_tf32=parts.to_tf32)
    images, height, width, channels = size.places.shape
    return TensorMap(
        pointer,
        dtype,
        (channels, width, height, images),
        _strides((channels, width, height), dtype),
        box,
        size.places.window,
        to_tf32=parts.to_tf32,
    )


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


FAMILY = Family(anatomy, output_shapes, plan, refuses, reads, candidates=candidates)
