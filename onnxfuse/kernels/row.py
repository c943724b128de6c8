"""Launch plans of the row template: pointwise work around reductions along the last axes, the row held in registers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from onnxfuse.kernels import functor, layout, plans
from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.body import Program, Reduce, broadcast, reduced_axes
from onnxfuse.kernels.layout import Layout, Shape
from onnxfuse.kernels.plans import LaunchPlan, Operand, Tuning
from onnxfuse.kernels.source import DEVICE, KernelSource, generated, template
from onnxfuse.kernels.types import UnsupportedError

MAX_THREADS = 1024
LOOP_THREADS = 1024
HELD_BYTES_AT_MAX_THREADS = 160  # 1024 threads leave 64 registers each: 40 for raw operands, the rest to compute


@dataclass(frozen=True)
class Placed:
    """An operand and how the kernel reaches it."""

    operand: Operand
    along: str
    """Along a row: `columns` (one element each), `scalar` (one element) or `gather` (broadcast along part of it)."""
    outer: str
    """From row to row: `full` (dense), `none` (the same for every row) or `strided`."""
    outer_slot: int
    """Its row of outer strides among the parameters, or -1."""
    row_slot: int
    """Its row of strides inside a row among the parameters, or -1."""


@dataclass(frozen=True)
class Split:
    """How a row is shared out: `threads` threads hold `items` vectors of `width` elements each."""

    threads: int
    items: int
    """0: the row is too long for registers, and the block walks along it."""
    width: int
    exact: bool
    """True: the threads' vectors are just the row."""


def plan(
    entry: str,
    program: Program,
    input_shapes: tuple[Shape, ...],
    output_shapes: tuple[Shape, ...],
    aligned: bool,
    arch: Arch,
    tuning: Tuning,
) -> LaunchPlan:
    """Return how to run a program with reductions on inputs of these shapes."""
    operands = plans.operands(program, input_shapes)
    full = broadcast(*(o.shape for o in operands))
    axes = row_axes(program, input_shapes, full)
    outer_shape, row_shape = full[: len(full) - axes], full[len(full) - axes :]
    rows, columns = math.prod(outer_shape), math.prod(row_shape)
    bits = plans.index_bits(max(rows * columns, rows, columns))
    strides = tuple(layout.strides_in(o.shape, full) for o in operands)
    outer = layout.collapse(outer_shape, tuple(s[: len(outer_shape)] for s in strides))
    inner = layout.collapse(row_shape, tuple(s[len(outer_shape) :] for s in strides))
    placed = _place(operands, outer, inner, rows, columns, axes)
    split = share_out(placed, columns, aligned, tuning)
    threads = max(split.threads, tuning.row_threads if split.threads <= 32 else 0)

    kernel = KernelSource(
        entry,
        (
            *(template(f) for f in (DEVICE, "math.cuh", "memory.cuh")),
            generated(entry, _constants(bits, outer, inner, placed, split, threads) + functor.source(program)),
            template("row.cuh"),
            generated(entry, _glue(operands, placed)),
            template("row.cu" if split.items else "row_loop.cu"),
            generated(entry, plans.entry_point(entry, "row", program, operands, tuning.min_blocks)),
        ),
    )
    return LaunchPlan(
        kernel=kernel,
        grid=(-(-rows // (threads // split.threads)), 1, 1),
        block=(threads, 1, 1),
        shared_bytes=0,
        parameters=_parameters(rows, columns, outer, inner, placed, bits),
        output_shapes=output_shapes,
    )


def row_axes(program: Program, input_shapes: tuple[Shape, ...], full: Shape) -> int:
    """Return how many of the last axes make a row; all reductions must run over just these."""
    shapes = program.shapes(input_shapes)
    counts: set[int] = set()
    for index in program.reductions():
        reduce = program.values[index]
        assert isinstance(reduce, Reduce)
        shape = shapes[reduce.arg]
        axes = reduced_axes(reduce, len(shape))
        count = len(axes)
        if axes != frozenset(range(len(shape) - count, len(shape))):
            raise UnsupportedError(f"a reduction over axes {sorted(axes)} of shape {shape}, expected the last axes")
        row = full[len(full) - count :]
        if shape[len(shape) - count :] != row:
            raise UnsupportedError(
                f"a reduction over the last {count} axes of shape {shape} in an op with rows of {row}"
            )
        counts.add(count)
    if len(counts) != 1:
        raise UnsupportedError(f"reductions over the last {' and '.join(map(str, sorted(counts)))} axes in one op")
    return counts.pop()


def _place(
    operands: tuple[Operand, ...], outer: Layout, inner: Layout, rows: int, columns: int, axes: int
) -> tuple[Placed, ...]:
    placed: list[Placed] = []
    outer_slots = row_slots = 0
    for operand, outer_strides, inner_strides in zip(operands, outer.strides, inner.strides, strict=True):
        own_row = math.prod(operand.shape[max(len(operand.shape) - axes, 0) :])
        own_rows = math.prod(operand.shape[: max(len(operand.shape) - axes, 0)])
        along = "columns" if own_row == columns else ("gather" if any(inner_strides) else "scalar")
        # A column vector has no outer axes: it stays one when there is a single row, and so does the kernel.
        dense = own_rows == rows and (operand.is_output or len(operand.shape) > axes)
        how = _outer_kind(operand, along, dense, any(outer_strides))
        placed.append(
            Placed(
                operand,
                along,
                how,
                outer_slots if how == "strided" else -1,
                row_slots if along == "gather" else -1,
            )
        )
        outer_slots += how == "strided"
        row_slots += along == "gather"
    return tuple(placed)


def _outer_kind(operand: Operand, along: str, dense: bool, moves: bool) -> str:
    if dense and along != "gather":
        return "full"
    # An output that is the same for every row is written by the first row only: it needs its strides, all 0.
    return "strided" if moves or (operand.is_output and not dense) else "none"


def share_out(placed: tuple[Placed, ...], columns: int, aligned: bool, tuning: Tuning) -> Split:
    """Return how the threads of a row share it: a part of a warp, a warp, a block, or a block that walks along it."""
    along = [p.operand for p in placed if p.along == "columns"]
    width = _width(placed, columns, tuning) if aligned else 1
    vectors = columns // width
    read = sum(o.size for o in along if not o.is_output)
    read += sum(p.operand.size for p in placed if p.along == "gather" and not p.operand.is_output)

    threads = 1
    while threads <= MAX_THREADS:
        items = max(1, -(-vectors // threads))
        elements = items * width
        limit = tuning.warp_elements if threads <= 32 else tuning.block_elements
        room = min(tuning.held_bytes, HELD_BYTES_AT_MAX_THREADS if threads == MAX_THREADS else tuning.held_bytes)
        spread = threads >= 32 or items == 1
        if spread and (items == 1 or (elements <= limit and elements * read <= room)):
            return Split(threads, items, width, exact=vectors == threads * items)
        threads *= 2
    return Split(LOOP_THREADS, 0, width, exact=False)


def _width(placed: tuple[Placed, ...], columns: int, tuning: Tuning) -> int:
    """The widest vector that divides the row, for the element sizes of what runs through rows and columns."""
    sizes = tuple(p.operand.size for p in placed if p.along == "columns" and p.outer == "full")
    width = tuning.width or layout.vector_width(sizes or tuple(p.operand.size for p in placed))
    while columns % width:
        width //= 2
    return width


def _constants(bits: int, outer: Layout, inner: Layout, placed: tuple[Placed, ...], split: Split, threads: int) -> str:
    outer_slots = sum(p.outer_slot >= 0 for p in placed)
    row_slots = sum(p.row_slot >= 0 for p in placed)
    return (
        f"using Index = {plans.index_type(bits)};\n"
        f"constexpr int OUTER_RANK = {len(outer.extents)}, OUTER_SLOTS = {max(outer_slots, 1)};\n"
        f"constexpr int ROW_RANK = {len(inner.extents)}, ROW_SLOTS = {max(row_slots, 1)};\n"
        f"constexpr int WIDTH = {split.width}, ITEMS = {split.items}, THREADS = {threads}, "
        f"ROW_THREADS = {split.threads};\n"
        f"constexpr bool EXACT = {'true' if split.exact else 'false'};\n\n"
    )


def _glue(operands: tuple[Operand, ...], placed: tuple[Placed, ...]) -> str:
    """Return the C++ between functor and template: what is held, how it is loaded, turned into elements and stored."""
    inputs = tuple(p for p in placed if not p.operand.is_output)
    outputs = tuple(p for p in placed if p.operand.is_output)
    scalars = tuple(p for p in inputs if p.along == "scalar")
    rest = tuple(p for p in inputs if p.along != "scalar")
    return "".join(
        (
            plans.pointers(operands),
            _struct("RowHeld", (f"Splat<{p.operand.stored}> {p.operand.name};" for p in scalars)),
            _struct("Held", (f"Pack<{p.operand.stored}, WIDTH> {p.operand.name};" for p in rest)),
            _pointers_at(placed),
            _load_scalars(scalars),
            _load(rest),
            _element(inputs),
            _store(tuple(p for p in outputs if p.along != "scalar")),
            _store_scalars(tuple(p for p in outputs if p.along == "scalar")),
        )
    )


def _struct(name: str, fields: Iterable[str]) -> str:
    return f"struct {name} {{\n" + "".join(f"  {field}\n" for field in fields) + "};\n"


def _pointers_at(placed: tuple[Placed, ...]) -> str:
    def moved(p: Placed) -> str:
        name = f"to.{p.operand.name}"
        if p.outer == "none":
            return name
        if p.outer == "strided":
            return f"{name} + at.offset(p.outer_stride[{p.outer_slot}])"
        return f"{name} + at.row * p.columns" if p.along == "columns" else f"{name} + at.row"

    return (
        "DEVICE Pointers pointers_at(const Pointers& to, const OuterPlace& at, const Parameters& p) {\n"
        f"  return {{{', '.join(moved(p) for p in placed)}}};\n"
        "}\n"
    )


def _load_scalars(scalars: tuple[Placed, ...]) -> str:
    loads = ", ".join(f"load_splat(row.{p.operand.name})" for p in scalars)
    return f"DEVICE RowHeld load_scalars(const Pointers& row) {{\n  return {{{loads}}};\n}}\n"


def _load(inputs: tuple[Placed, ...]) -> str:
    lines = []
    for p in inputs:
        name = p.operand.name
        call = (
            f"load_columns<W>(row.{name}, column)"
            if p.along == "columns"
            else f"load_gather<W>(row.{name}, column, p.row_stride[{p.row_slot}], p)"
        )
        lines.append(f"  held.{name} = {call};\n")
    head = (
        "template <int W> DEVICE void load_all(Held& held, const Pointers& row, Index column, const Parameters& p) {\n"
    )
    return head + "".join(lines) + "}\n"


def _element(inputs: tuple[Placed, ...]) -> str:
    values = ", ".join(f"{'scalars' if p.along == 'scalar' else 'held'}.{p.operand.name}.get(lane)" for p in inputs)
    return (
        f"DEVICE Element element(const Held& held, const RowHeld& scalars, int lane) {{\n  return {{{values}}};\n}}\n"
    )


def _condition(p: Placed) -> str:
    return f"if (at.first(p.outer_stride[{p.outer_slot}])) " if p.outer == "strided" else ""


def _store(outputs: tuple[Placed, ...]) -> str:
    lines = []
    for p in outputs:
        o = p.operand
        call = (
            f"store_columns<W>(row.{o.name}, {o.name}, column)"
            if p.along == "columns"
            else f"store_first<W>(row.{o.name}, {o.name}, column, p.row_stride[{p.row_slot}], p)"
        )
        lines.append(
            f"  Stored<{o.stored}>::Value {o.name}[W];\n"
            f"  UNROLLED for (int w = 0; w < W; ++w) {o.name}[w] = result[w].{o.field};\n"
            f"  {_condition(p)}{call};\n"
        )
    head = (
        "template <int W> DEVICE void store_all(const Pointers& row, const Result (&result)[W], Index column,\n"
        "                                       const OuterPlace& at, const Parameters& p) {\n"
    )
    return head + "".join(lines) + "}\n"


def _store_scalars(outputs: tuple[Placed, ...]) -> str:
    lines = [f"  {_condition(p)}store_scalar(row.{p.operand.name}, result.{p.operand.field});\n" for p in outputs]
    head = (
        "DEVICE void store_scalars(const Pointers& row, const Result& result, const OuterPlace& at, "
        "const Parameters& p) {\n"
    )
    return head + "".join(lines) + "}\n"


def _parameters(rows: int, columns: int, outer: Layout, inner: Layout, placed: tuple[Placed, ...], bits: int) -> bytes:
    words = [rows, columns]
    for space, slots in ((outer, [p.outer_slot for p in placed]), (inner, [p.row_slot for p in placed])):
        for extent in space.extents:
            words.extend(layout.divisor(extent, bits))
        strides = [s for slot, s in zip(slots, space.strides, strict=True) if slot >= 0]
        for row in strides or [(0,) * len(space.extents)]:
            words.extend(row)
    return plans.packed(words, bits)
