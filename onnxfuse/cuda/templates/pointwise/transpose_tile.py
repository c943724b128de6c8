"""Launch plans of pointwise work with transposed inputs, through a tile in shared memory."""

import math
from dataclasses import dataclass, replace

from onnxfuse.codegen.emit import access, expressions, index_maps
from onnxfuse.codegen.emit.access import Operand
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.lower_movement import LoweredProgram, Read, Source
from onnxfuse.codegen.emit.source import DEVICE, KernelSource, generated, template
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.plan_request import PlanRequest
from onnxfuse.cuda.templates.pointwise import costs, dense, sources
from onnxfuse.cuda.templates.pointwise.costs import TransposeCosts
from onnxfuse.cuda.templates.pointwise.sources import Fetch
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant
from onnxfuse.symbolic import element_types, strides
from onnxfuse.symbolic.branching import gcd


@dataclass(frozen=True)
class TransposeTile:
    """The work of a block, and the inputs staged through shared memory."""

    row: int
    """The dimension in which those are contiguous."""
    rows: int
    columns: int
    sources: tuple[int, ...]
    """Indices of inputs of the plain program."""
    written_flat: bool = False
    """The tile holds whole output rows, contiguous in memory: vectors continue into the next row."""
    read_flat: tuple[int, ...] = ()
    """Sources of which it holds whole columns, contiguous in memory: vectors continue into the next column."""


def choose(lowered: LoweredProgram, arch: Arch | None) -> TransposeTile | None:
    """Return the tile in whose row dimension most of the transposed inputs are contiguous; None if no input is
    transposed. Without a GPU, for models that are optimized for any."""
    inner, cost = len(lowered.extents) - 1, costs.transpose(arch)
    across = {n: s for n, s in lowered.sources.items() if isinstance(s, Read) and _runs_across(s, inner)}
    best: tuple[int, ...] = ()
    row = -1
    for d in range(inner):
        along = tuple(n for n, s in across.items() if lowered.extents[d] >= cost.narrow and _contiguous(s, d))
        if len(along) > len(best):
            best, row = along, d
    if not best or lowered.extents[inner] < cost.narrow:
        return None
    tile = _shaped(lowered, row, best, cost)
    elements = min(tile.rows, lowered.extents[row]) * min(tile.columns, lowered.extents[inner])
    if (
        elements < min(cost.smallest, lowered.extents[row] * lowered.extents[inner] // 2)
        or elements < cost.smallest // 4
    ):
        return None
    sizes = [element_types.TYPES[lowered.program.inputs[n]].size for n in best]
    fitting = tuple(
        n for i, n in enumerate(best) if sum(sizes[: i + 1]) * tile.columns * (tile.rows + 4) <= cost.shared_bytes
    )
    return replace(tile, sources=fitting) if fitting else None


def _shaped(lowered: LoweredProgram, row: int, across: tuple[int, ...], cost: TransposeCosts) -> TransposeTile:
    """Return the tile's sides. Odd extents require narrow vectors, unless one side fits completely and vectors cross
    rows."""
    inner = len(lowered.extents) - 1
    down, along = lowered.extents[row], lowered.extents[inner]
    if along % 4 and along <= cost.flat and row == inner - 1 and down * along % 8 == 0:
        rows = min(cost.flat_area // along // cost.side * cost.side, -(-down // 8) * 8)
        return TransposeTile(row, rows, along, across, written_flat=True)
    dense = tuple(n for n in across if _dense_by_column(lowered, lowered.sources[n], row))
    if down % 4 and down <= cost.side and dense:
        # Half the area: 49 rows of 40 columns reach 81% of copy bandwidth, of 80 columns 54% (float16, H200).
        columns = min(cost.area // 2 // down // 8 * 8, -(-along // 8) * 8)
        return TransposeTile(row, down, columns, across, read_flat=dense)
    size = min(element_types.TYPES[lowered.program.inputs[n]].size for n in across)
    return TransposeTile(row, *_sides(down, along, size, cost), across)


def _dense_by_column(lowered: LoweredProgram, source: Source, row: int) -> bool:
    """Return whether a source is contiguous in column order."""
    inner = len(lowered.extents) - 1
    if not isinstance(source, Read) or len(source.cases) > 1:
        return False
    (case,) = source.cases
    bounded = any(index_maps.varies(b.index, d) for b in case.bounds for d in (row, inner))
    across = case.position.divides_by_digit(inner) or case.position.factor(inner) != lowered.extents[row]
    return not bounded and not across


def _runs_across(source: Read, inner: int) -> bool:
    return any(abs(c.position.factor(inner)) > 1 for c in source.cases)


def _contiguous(source: Read, dimension: int) -> bool:
    return all(c.position.factor(dimension) == 1 and not c.position.divides_by_digit(dimension) for c in source.cases)


def _sides(rows: int, columns: int, size: int, cost: TransposeCosts) -> tuple[int, int]:
    """Return the tile sides for dimensions of these extents: few elements beyond the edges, and about the area of a
    tile in total."""
    step = max(8, 4 // size)
    down = _side(rows, cost.side, step, cost.waste)
    # One long side suffices: with two, half as many tiles would be resident.
    across = _side(columns, cost.side, step, cost.waste if down <= cost.side else 1)
    if down < cost.side // 2:
        across = _side(columns, cost.area // down, step, 1)
    elif across < cost.side // 2:
        down = _side(rows, cost.area // across, step, 1)
    return down, across


def _side(extent: int, limit: int, step: int, waste: float) -> int:
    """Return the side that divides `extent` into as few equal tiles as `limit` allows.

    If more than a share of `waste` lies beyond the end, half as many tiles.
    """
    if extent > 4 * limit:
        return limit // step * step
    parts = -(-extent // limit)

    def side(parts: int) -> int:
        return -(-extent // parts // step) * step

    wasted = side(parts) * parts - extent
    return side(parts // 2) if parts == 4 and wasted > waste * extent else side(parts)


def plan(request: PlanRequest[PointwiseVariant], lowered: LoweredProgram, tile: TransposeTile) -> LaunchPlan:
    """Return the plan in which a block stages the transposed inputs through a tile."""
    entry, aligned, tuning = request.entry, request.aligned, request.tuning
    tensors = sources.operands(request.program, lowered, request.input_shapes)
    inner = len(lowered.extents) - 1
    widest = strides.vector_width(tuple(t.size for t in tensors)) if aligned else 1
    # A vector crosses at most one row end.
    widest = min(widest, 1 << (tile.columns.bit_length() - 1))
    along = tile.columns * tile.rows if tile.written_flat else tile.columns
    width = gcd(widest, along, lowered.extents[inner] * (lowered.extents[tile.row] if tile.written_flat else 1))
    # Below half the widest vectors rows are shifted: 1025 columns of float16, element by element, reach 34% of a copy.
    shifted = not tile.written_flat and not tile.read_flat and width < widest // 2 and tile.columns % widest == 0
    width = widest if shifted else width
    tail = 2 if tile.written_flat else 1
    numbers = index_maps.MapScalars(sources.index_bits(lowered, request.input_shapes))
    down = -(-lowered.extents[tile.row] // tile.rows)
    across = -(-(lowered.extents[inner] + (width - 1 if shifted else 0)) // tile.columns)
    fetches = [sources.fetch(n, s, lowered, width, tail, aligned) for n, s in sorted(lowered.sources.items())]
    text = sources.finders(fetches, lowered, numbers)
    work = _tiles(tile, lowered, shifted, aligned, fetches, tensors, numbers)
    text += (
        f"DEVICE const Divisor<Index>& tiles_down(const Parameters& p) {{ return {numbers.divisor(down)}; }}\n"
        f"DEVICE const Divisor<Index>& tiles_across(const Parameters& p) {{ return {numbers.divisor(across)}; }}\n"
    )
    shape = (
        f"constexpr int ROW = {tile.row}, ROWS = {tile.rows}, COLUMNS = {tile.columns};\n"
        f"constexpr bool WRITTEN_FLAT = {str(tile.written_flat).lower()}, SHIFTED = {str(shifted).lower()};\n"
    )
    kernel = KernelSource(
        entry,
        (
            *(template(f) for f in (DEVICE, "include/math.cuh", "include/memory.cuh")),
            generated(
                entry,
                sources.constants(lowered, numbers, width, 1, tail, tuning.pointwise_threads)
                + shape
                + expressions.source(lowered.program),
            ),
            *(template(f) for f in ("include/coordinates.cuh", "include/place.cuh", "pointwise/mapped.cuh")),
            generated(entry, text),
            template("pointwise/transpose_tile.cu"),
            generated(
                entry,
                access.pointers(tensors) + dense.around(sources.loads(fetches), sources.stores(tensors), work),
            ),
            template("pointwise/transpose_tile_work.cu"),
            generated(entry, entry_point(entry, "tiled", request.op, tensors, tuning.min_blocks)),
        ),
    )
    blocks = math.prod(lowered.extents) // lowered.extents[inner] // lowered.extents[tile.row] * down * across
    return LaunchPlan(
        kernel=kernel,
        grid=(blocks, 1, 1),
        block=(tuning.pointwise_threads, 1, 1),
        shared_bytes=0,
        parameters=launch_plan.packed(sources.words(math.prod(lowered.extents), lowered, numbers), numbers.bits),
        output_shapes=request.output_shapes,
    )


def _flat_grain(source: Read, lowered: LoweredProgram, tile: TransposeTile, most: int) -> int:
    """Return the elements per access to a source that is contiguous in column order."""
    inner = len(lowered.extents) - 1
    (case,) = source.cases
    others = index_maps.others(case.position, (tile.row, inner))
    return gcd(most, tile.rows * tile.columns, case.position.constant, *others)


def _tiles(
    tile: TransposeTile,
    lowered: LoweredProgram,
    shifted: bool,
    aligned: bool,
    fetches: list[Fetch],
    tensors: tuple[Operand, ...],
    numbers: index_maps.MapScalars,
) -> str:
    """Return `Tiles`, the code that fills them, and `load_all`, which reads them and the other sources."""
    fields, fills, loads = [], [], []
    for f in fetches:
        if f.number in tile.sources and isinstance(f.source, Read):
            facts = element_types.TYPES[lowered.program.inputs[f.number]]
            fields.append(f"  Tile<{facts.stored}> s{f.number};\n")
            fills.append(f"  {_fill(f, f.source, tile, lowered, aligned, tensors, numbers)};\n")
            loads.append(f"  held.s{f.number} = pick<W>(tiles.s{f.number}, row, column);\n")
        else:
            loads.append(f"  held.s{f.number} = {_other(f, lowered, shifted)};\n")
    return (
        f"struct Tiles {{\n{''.join(fields)}}};\n"
        "DEVICE void fill_all(Tiles& tiles, const Pointers& from, const Block& block, const Parameters& p) {\n"
        f"{''.join(fills)}}}\n"
        "template <int W>\nDEVICE void load_all(Held<W>& held, const Pointers& from, const Tiles& tiles, int row, "
        "int column,\n                     const Place& at, unsigned own, const Parameters& p) {\n"
        f"{''.join(loads)}}}\n"
    )


def _fill(
    f: Fetch,
    source: Read,
    tile: TransposeTile,
    lowered: LoweredProgram,
    aligned: bool,
    tensors: tuple[Operand, ...],
    numbers: index_maps.MapScalars,
) -> str:
    """Return the call that copies a source to shared memory."""
    size = element_types.TYPES[lowered.program.inputs[f.number]].size
    operand = sources.start_of(source).removesuffix(", ")
    if f.number in tile.read_flat:
        grain = _flat_grain(source, lowered, tile, 16 // size) if aligned else 1
        return f"fill_flat<{f.struct}, {grain}>(tiles.s{f.number}, {operand}, block, p)"
    most = min(16 // size, tile.rows & -tile.rows)
    grain = gcd(index_maps.granularity(source, (tile.row,), most), lowered.extents[tile.row]) if aligned else 1
    whole = len(source.cases) == 1 and not any(index_maps.varies(b.index, tile.row) for b in source.cases[0].bounds)
    if aligned and whole and grain * size < 8:
        count = numbers.number(next(math.prod(t.shape) for t in tensors if t.name == f"in{source.inputs[0]}"))
        return f"fill_shifted<{f.struct}, {16 // size}>(tiles.s{f.number}, {operand}, {count}, block, p)"
    return f"fill<{f.struct}, {grain}>(tiles.s{f.number}, {operand}, block, p)"


def _other(f: Fetch, lowered: LoweredProgram, shifted: bool) -> str:
    """Return the load of a source that is not staged."""
    start = sources.start_of(f.source)
    if not shifted or f.holder.startswith("Splat") or index_maps.fixed(f.source, (len(lowered.extents) - 1,)):
        return f"{f.call}({start}at, p)"
    if not isinstance(f.source, Read):
        return f"load_flags<{f.struct}, W>(at, p)"
    if _as_written(f.source, lowered):
        return f"load_written<W>({start}at, p)"
    return f"load_owned<{f.struct}, W>({start}at, own, p)"


def _as_written(source: Read, lowered: LoweredProgram) -> bool:
    """Return whether a source has the same memory layout as the output."""
    (case, *others) = source.cases
    return not others and not case.bounds and case.position == lowered.space.offset
