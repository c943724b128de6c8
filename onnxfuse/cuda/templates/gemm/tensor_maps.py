"""TMA tensor maps of a product on Hopper: matrices, windows, filters and outputs."""

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace

from onnxfuse.codegen.program.window import WindowGeometry
from onnxfuse.cuda.isa.isa import SWIZZLED_BYTES
from onnxfuse.cuda.planning import limits
from onnxfuse.cuda.planning.launch_plan import PixelWindow, TensorMapSpec
from onnxfuse.cuda.templates.gemm import sm90_cpp
from onnxfuse.cuda.templates.gemm.body import Anatomy
from onnxfuse.cuda.templates.gemm.problem import GemmProblem
from onnxfuse.cuda.templates.gemm.variant import GemmTile
from onnxfuse.cuda.templates.gemm.work import GemmSource
from onnxfuse.model.fused import Slot
from onnxfuse.symbolic import element_types

CHUNK = 64
"""Columns that a warp stores at once."""


def maps(work: GemmSource, tile: GemmTile, left_rows: int) -> tuple[TensorMapSpec, ...]:
    """Return the tensor maps in the order of `TensorMaps`; `left_rows` of the left factor are loaded per tile."""
    op, parts, size, terms = work.op, work.parts, work.size, work.parts.terms
    fetched = terms // sm90_cpp.SLICES * sm90_cpp.fetched_slices(work)
    maps = _left_maps(parts, size, (fetched, left_rows))
    right = None if size.batch is None else size.batch.right
    for number, product in enumerate(parts.products if parts.packed is None else ()):
        if size.window is not None:
            maps.append(_filters_map(product.b, parts, size, size.window, (fetched, tile.n // tile.cluster)))
            continue
        n = size.columns(number)
        lies, box = (size.k, n), (64, terms // tile.cluster)
        if product.transposed:
            lies, box = (n, size.k), (fetched, tile.n // tile.cluster)
        maps.append(_map(product.b, parts.factors.right, *lies, box, matrices=right, to_tf32=parts.to_tf32))
    for n, output in enumerate(() if work.stored else work.program.outputs):
        columns = min(CHUNK, SWIZZLED_BYTES // element_types.TYPES[output.dtype].size)
        for body, epilogue in enumerate(parts.epilogues):
            position = len(op.inputs) + epilogue.outputs[n]
            maps.append(_output_map(position, output.dtype, size, body, (columns, 16), op.slot))
    if work.staged is not None:
        for body, epilogue in enumerate(parts.epilogues):
            position = epilogue.operands[work.staged - work.first_operand]
            staged = op.inputs[position]
            box = (min(CHUNK, SWIZZLED_BYTES // element_types.TYPES[staged].size), 16)
            maps.append(_output_map(position, staged, size, body, box))
    return tuple(maps)


def count(work: GemmSource) -> int:
    """Return the number of tensor maps."""
    parts = work.parts
    of_a = 1 if parts.prologue is None else len(parts.prologue.fetched)
    of_sibling = (0 if work.stored else len(parts.epilogues[0].outputs)) + (work.staged is not None)
    of_b = len(parts.products) if parts.packed is None else 0
    return of_a + of_b + of_sibling * len(parts.epilogues)


def _output_map(
    pointer: int, dtype: int, size: GemmProblem, body: int, box: tuple[int, int], slot: Slot | None = None
) -> TensorMapSpec:
    """Return the map of a tensor laid out like a body's products: stacked, or with the columns of groups concatenated.

    `slot`: the tensor is a column slice of a wider matrix.
    """
    pitch, item = size.full_of(body)[-1] if slot is None else slot.total, element_types.TYPES[dtype].size
    matrices = None if size.batch is None else size.products
    whole = _map(pointer, dtype, size.m, size.columns(body), box, pitch, matrices=matrices)
    if size.groups > 1:
        strides = (pitch * item, size.n * item)
        whole = TensorMapSpec(pointer, dtype, (size.n, size.m, size.groups), strides, (*box, 1))
    return replace(whole, offset=0 if slot is None else slot.first * item)


def _left_maps(parts: Anatomy, size: GemmProblem, box: tuple[int, int]) -> list[TensorMapSpec]:
    """Return the map of the left factor, or those of the prologue's input matrices; `box`: terms and rows."""
    pointer, dtype = parts.products[0].a, parts.dtype
    if parts.prologue is not None:
        read = zip(parts.prologue.cells, parts.prologue.cell_types, strict=True)
        return [_map(i, t, size.m, size.k, box) for i, t in read if i in parts.prologue.fetched]
    if size.window is None:
        matrices = None if size.batch is None else size.batch.left
        return [_map(pointer, dtype, size.m, size.k, box, size.pitch, matrices=matrices, to_tf32=parts.to_tf32)]
    extents = size.window.shape[::-1]
    strides = _strides(extents[:-1], dtype)
    return [TensorMapSpec(pointer, dtype, extents, strides, box, _window(size.window), to_tf32=parts.to_tf32)]


def _window(geometry: WindowGeometry) -> PixelWindow:
    """Return the window for TMA's im2col mode."""
    lower = tuple(-b for b in geometry.begin[::-1])
    upper = tuple(geometry.end[i] - (k - 1) * geometry.dilations[i] for i, k in enumerate(geometry.kernel))[::-1]
    return PixelWindow(lower, upper, geometry.strides[::-1])


def slides_fast(geometry: WindowGeometry) -> bool:
    """Return whether TMA supports windows of these strides, sizes and pads."""
    window, corner = _window(geometry), limits.CORNERS[len(geometry.kernel)]
    offsets = ((k - 1) * d for k, d in zip(geometry.kernel, geometry.dilations, strict=True))
    return (
        max(geometry.strides) <= limits.TRAVERSAL_STRIDE
        and all(-corner <= c < corner for c in (*window.lower, *window.upper))
        and all(o <= limits.OFFSETS[len(geometry.kernel)] for o in offsets)
    )


def _filters_map(
    pointer: int, parts: Anatomy, size: GemmProblem, geometry: WindowGeometry, box: tuple[int, int]
) -> TensorMapSpec:
    """Return the map of a window's filters; `box`: terms and filters."""
    extents: tuple[int, ...] = (size.channels, math.prod(geometry.kernel), size.n)
    boxes: tuple[int, ...] = (box[0], 1, box[1])
    if size.groups > 1:
        extents, boxes = (*extents, size.groups), (*boxes, 1)
    strides = _strides(extents[:-1], parts.dtype)
    return TensorMapSpec(pointer, parts.dtype, extents, strides, boxes, to_tf32=parts.to_tf32)


def _strides(extents: Sequence[int], dtype: int) -> tuple[int, ...]:
    """Return the byte strides of a contiguous tensor, except the innermost dimension's."""
    return tuple(itertools.accumulate(extents, operator.mul, initial=element_types.TYPES[dtype].size))[1:]


def _map(
    pointer: int,
    dtype: int,
    rows: int,
    columns: int,
    box: tuple[int, int],
    pitch: int | None = None,
    *,
    matrices: int | None = None,
    to_tf32: bool = False,
) -> TensorMapSpec:
    """Return the tensor map of a matrix, or of several that are separate in it, so that rows beyond one read as zero.

    `pitch`: row stride in elements, if it differs from `columns`.
    """
    line = (columns if pitch is None else pitch) * element_types.TYPES[dtype].size
    if matrices is None:
        return TensorMapSpec(pointer, dtype, (columns, rows), (line,), box, to_tf32=to_tf32)
    return TensorMapSpec(pointer, dtype, (columns, rows, matrices), (line, line * rows), (*box, 1), to_tf32=to_tf32)
