"""Launch plans of the row template: pointwise work around reductions along neighbours in memory, the row in registers.

A row may also be made of several runs of neighbours, as the channels' planes of a batch: axes 0, 2 and 3 of NCHW.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnxfuse.kernels import launch_plan
from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.emit import access, expressions
from onnxfuse.kernels.emit.access import Held, Load, Operand, Store, element, store
from onnxfuse.kernels.emit.entry import entry_point
from onnxfuse.kernels.emit.source import CLUSTER, DEVICE, KernelSource, generated, template
from onnxfuse.kernels.ir.strides import Layout, Shape, divisors, row_major, slots, vector_width
from onnxfuse.kernels.ir.strides import rows as strided
from onnxfuse.kernels.ir.types import UnsupportedError
from onnxfuse.kernels.ir.unify_axes import Lookup
from onnxfuse.kernels.launch_plan import LaunchPlan, Tuning
from onnxfuse.kernels.templates.reduction.problem import Reduced

LOOP_THREADS = 1024
HELD_BYTES_AT_MAX_THREADS = 160  # 1024 threads leave 64 registers each: 40 for raw operands, the rest to compute
LONG_THREADS, LONG_BLOCKS, LONG_HELD_BYTES = 512, 2, 128  # 64 registers each as well
LOOP_BYTES_IN_FLIGHT = 64  # of input, per thread that walks along its row

CROWDED_BYTES = 200
"""Of raw operands in a thread of shifted rows: above it, 128 registers are the limit, not the compiler's choice.

With a few more there are three blocks of 128 threads in place of four: residual + LayerNormalization over 197 columns
80 us by 126 registers, 90 by 132.
"""
SMALL_ELEMENTS = 4
"""Of a row that a thread holds where the tensor is small, as long as a block's threads go round.

Residual + LayerNormalization over 8x768 1.15 us, with 24 elements each 1.46 (float16, H200, 2026-11).
"""
READ_SEGMENTS = 4
"""Shifted rows that are only read take second vectors from a quarter of the bytes on: means over 7x7 pixels 19.5 us by
2 lanes each, 29.6 by 8. What is written as well must lie side by side: softmax over 49 columns 50.7 us by 8, 97 by 2.
"""


@dataclass(frozen=True)
class Placed:
    """An operand and how the kernel reaches it."""

    operand: Operand
    along: str
    """Along a row: `columns` (one element each), `scalar` (one element), `runs` (vectors of neighbours, here and
    there), `spread` (one element per vector, as the weights by channel of a group) or `gather` (anything else)."""
    outer: str
    """From row to row: `full` (dense), `none` (the same for every row) or `strided`."""
    outer_slot: int
    """Its row of outer strides among the parameters, or -1."""
    row_slot: int
    """Its row of strides inside a row among the parameters, or -1."""
    reduced: bool
    """A reduction reads it."""
    lookup: Lookup | None = None
    """Of a table: what is looked up in it."""

    @property
    def dense(self) -> bool:
        """As big as the whole op: its vectors lie on the boundaries of memory, and each is fetched once."""
        return self.along == "columns" and self.outer == "full"


@dataclass(frozen=True)
class Split:
    """How a row is shared out: `threads` threads hold `items` vectors of `width` elements each."""

    threads: int
    """Of all blocks that share the row."""
    items: int
    """0: the row is too long for registers, and the block walks along it."""
    width: int
    exact: bool
    """True: the threads' vectors are just the row."""
    shifted: bool
    """True: rows begin and end inside vectors."""
    inner_items: int = 0
    """Shifted: the vectors of a thread before this one, but the first, lie inside the row wherever it begins."""
    late: bool = False
    """True: what only the outputs read is fetched after the reductions, so that no register holds it meanwhile."""
    min_blocks: int = 0
    """Blocks that a multiprocessor must have registers for; 0 = the compiler's choice."""
    cluster: int = 1
    """Blocks that share a row."""

    def fetches_late(self, p: Placed) -> bool:
        """Return whether the kernel fetches this input after the reductions."""
        # A dense operand comes from memory, not from a cache: too late there. A loop would fetch it in every round.
        return self.late and not p.reduced and not (p.dense and self.items)


@dataclass(frozen=True)
class Choice:
    """A way to share out a row, if it fits."""

    threads: int
    elements: int
    """Elements that a thread may hold."""
    held_bytes: int
    """Bytes of raw operands that a thread may hold."""
    late: bool = False
    min_blocks: int = 0
    cluster: int = 1


def plan(work: Reduced) -> LaunchPlan:
    """Return how to run a program that reduces the innermost axis, and others or not."""
    program, operands, aligned, arch, tuning = (
        work.program,
        work.operands,
        work.asked.aligned,
        work.asked.arch,
        work.asked.tuning,
    )
    rows, columns = math.prod(work.extents(work.kept)), math.prod(work.extents(work.axes))
    bits = launch_plan.index_bits(max(rows * columns, rows, columns, *(t.rows for t in work.lookups.values())))
    outer, inner = work.layout(work.kept), work.layout(work.axes)
    sizes = tuple(math.prod(n for n, step in zip(work.full, s, strict=True) if step) for s in work.strides)
    in_reductions = frozenset(f"in{i}" for i in expressions.reduced_inputs(program))
    placed, width = _place(operands, sizes, outer, inner, rows, columns, len(work.axes), in_reductions, aligned, tuning)
    split = share_out(placed, rows, columns, width, aligned, arch, tuning)
    placed = _with_lookups(_spread(placed, inner, split), work.lookups)
    row_threads = split.threads // split.cluster
    threads = max(row_threads, tuning.row_threads if split.threads <= 32 else 0)

    entry = work.asked.entry
    kernel = KernelSource(
        entry,
        (
            *(template(f) for f in (DEVICE, CLUSTER, "cuda/math.cuh", "cuda/memory.cuh")),
            generated(entry, constants(bits, outer, inner, placed, split, threads) + expressions.source(program)),
            *(template(f) for f in ("cuda/reduce.cuh", "reduction/row.cuh")),
            generated(entry, around(placed, split)),
            template("reduction/row.cu" if split.items else "reduction/row_loop.cu"),
            generated(
                entry,
                entry_point(
                    entry,
                    "row",
                    program,
                    operands,
                    tuning.min_blocks or split.min_blocks,
                    split.cluster,
                ),
            ),
        ),
    )
    return LaunchPlan(
        kernel=kernel,
        grid=(-(-rows // (threads // row_threads)) * split.cluster, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=0,
        parameters=parameters(rows, columns, outer, inner, placed, bits),
        output_shapes=work.asked.output_shapes,
    )


def _place(
    operands: tuple[Operand, ...],
    sizes: tuple[int, ...],
    outer: Layout,
    inner: Layout,
    rows: int,
    columns: int,
    axes: int,
    reduced: frozenset[str],
    aligned: bool,
    tuning: Tuning,
) -> tuple[tuple[Placed, ...], int]:
    """Return how the kernel reaches each operand, and the width of its vectors where runs decide it, else 0."""
    runs = [
        (o, (*outer_strides, *inner_strides[:-1], inner.extents[-1]))
        for o, outer_strides, inner_strides in zip(operands, outer.strides, inner.strides, strict=True)
        if inner_strides[-1] == 1 and not _contiguous(inner_strides, inner) and all(inner_strides)
    ]
    width = 0
    if runs:
        widest = tuning.width or vector_width(tuple(o.size for o, _ in runs))
        width = math.gcd(widest, *(s for _, steps in runs for s in steps)) if aligned else 1
    kinds: list[tuple[str, str]] = []
    for operand, size, outer_strides, inner_strides in zip(operands, sizes, outer.strides, inner.strides, strict=True):
        in_runs = any(operand is o for o, _ in runs)
        along = "runs" if in_runs else _along(inner_strides, inner, columns)
        own_columns = columns if along in ("columns", "runs") else 1
        # A column vector has no outer axes: it stays one when there is a single row, and so does the kernel.
        dense = (
            along in ("columns", "scalar")
            and size == rows * own_columns
            and all(
                s in (0, step * own_columns) for s, step in zip(outer_strides, row_major(outer.extents), strict=True)
            )
            and (operand.is_output or len(operand.shape) > axes)
        )
        kinds.append((along, _outer_kind(operand, along, dense, any(outer_strides))))
    outer_slots = slots(how == "strided" for _, how in kinds)
    row_slots = slots(along in ("gather", "runs") for along, _ in kinds)
    placed = (
        Placed(operand, along, how, outer_slot, row_slot, operand.name in reduced)
        for operand, (along, how), outer_slot, row_slot in zip(operands, kinds, outer_slots, row_slots, strict=True)
    )
    return tuple(placed), width


def _spread(placed: tuple[Placed, ...], inner: Layout, split: Split) -> tuple[Placed, ...]:
    """Return the same with inputs that stay put along whole vectors told from those that need a place per element."""

    def stays(p: Placed) -> bool:
        strides = inner.strides[placed.index(p)]
        return p.along == "gather" and not p.operand.is_output and strides[-1] == 0

    if split.shifted or inner.extents[-1] % split.width:
        return placed
    return tuple(replace(p, along="spread") if stays(p) else p for p in placed)


def _with_lookups(placed: tuple[Placed, ...], lookups: Mapping[str, Lookup]) -> tuple[Placed, ...]:
    """Return the same with tables told from other operands."""
    along = {p.operand.name: p.along for p in placed}
    for name, lookup in lookups.items():
        if along[name] != "columns":
            raise UnsupportedError("a table whose rows are not those of the reduction")
        if along[f"in{lookup.number}"] != "scalar":
            raise UnsupportedError("Gather by numbers that vary along the row")
    return tuple(replace(p, lookup=lookups.get(p.operand.name)) for p in placed)


def _contiguous(strides: Shape, inner: Layout) -> bool:
    return all(n == 1 or s == step for n, s, step in zip(inner.extents, strides, inner.contiguous, strict=True))


def _along(strides: Shape, inner: Layout, columns: int) -> str:
    if _contiguous(strides, inner):
        return "columns"
    return "gather" if any(strides) else "scalar"


def _outer_kind(operand: Operand, along: str, dense: bool, moves: bool) -> str:
    if dense:
        return "full"
    # An output that is the same for every row is written by the first row only: it needs its strides, all 0.
    return "strided" if moves or operand.is_output else "none"


def share_out(
    placed: tuple[Placed, ...], rows: int, columns: int, width: int, aligned: bool, arch: Arch, tuning: Tuning
) -> Split:
    """Return how the threads of a row share it: a part of a warp, a warp, a block, several blocks, or as a walk.

    `width`: elements per vector where it is decided already, else 0.
    """
    shifted = False
    small = launch_plan.is_small(rows * columns, arch)
    if not width:
        width, shifted = _width(placed, columns, aligned, small, tuning)
    # A row of 197 halves, shifted by at most 7 of them, touches 26 vectors of 8.
    vectors = -(-(columns + (width - math.gcd(columns, width) if shifted else 0)) // width)
    inputs = [p for p in placed if not p.operand.is_output and p.along != "scalar"]
    size = min((p.operand.size for p in placed if p.dense), default=1)
    written = any(p.operand.is_output and p.along != "scalar" for p in placed)
    aside = tuning.row_segment if written or not shifted else tuning.row_segment // READ_SEGMENTS
    segment = min(32, max(1, aside // (width * size)))
    few = arch.cluster if rows < arch.sm_count else 1

    for choice in _choices(arch, tuning, few > 1, shifted):
        split = Split(
            choice.threads, 1, width, False, shifted, late=choice.late, min_blocks=choice.min_blocks,
            cluster=choice.cluster,
        )  # fmt: skip
        items = max(1, -(-vectors // choice.threads))
        held = sum(p.operand.size for p in inputs if not split.fetches_late(p)) * items * width
        narrow = choice.threads < segment and items > 1
        narrow = narrow or (small and items * width > SMALL_ELEMENTS and choice.threads < LONG_THREADS)
        # Few rows: a second block helps where each thread still has two vectors, more than a cluster's barrier costs.
        narrow = narrow or (choice.cluster < few and vectors >= 2 * choice.threads * 2 and choice.threads >= 256)
        # One vector per thread always fits.
        fits = items == 1 or (items * width <= choice.elements and held <= choice.held_bytes)
        if fits and not narrow:
            exact = not shifted and vectors == choice.threads * items
            inner = columns // (choice.threads * width) if shifted else 0
            crowded = shifted and choice.threads <= 32 and held > CROWDED_BYTES
            blocks = 512 // max(tuning.row_threads, 32) if crowded else split.min_blocks
            return replace(split, items=items, exact=exact, inner_items=inner, min_blocks=blocks)
    # A walk fetches again what it needs again: blocks that share a row keep fewer rows in the cache at a time.
    cluster = max(c for c in (1, 2, 4, 8) if c <= arch.cluster and (c == 1 or vectors >= 4 * LOOP_THREADS * c))
    return Split(LOOP_THREADS * cluster, 0, width, exact=False, shifted=shifted, late=True, cluster=cluster)


def _choices(arch: Arch, tuning: Tuning, few: bool, shifted: bool) -> tuple[Choice, ...]:
    """The ways to hold a row in registers, best first; `few` rows do not keep the GPU busy by themselves."""
    lanes = (Choice(n, tuning.warp_elements, tuning.held_bytes) for n in (1, 2, 4, 8, 16, 32))
    blocks = (Choice(n, tuning.block_elements, tuning.held_bytes) for n in (64, 128, 256, 512))
    # The vectors of a shifted row are one more than fill the threads: many vectors per thread waste the least. Scale
    # and bias come late, or no register would be left. Residual + LayerNormalization over 1025 columns 94% of copy
    # bandwidth, without 73%; over 2049 columns 93% and 66%.
    full = (Choice(n, tuning.warp_elements, tuning.held_bytes, late=True) for n in (32, 64, 128, 256))
    # One block of 1024 threads leaves the memory idle while it reduces and computes: 82% of a copy at 16384 columns
    # (H200, 2026-11). Of two blocks with 512 threads one can fetch while the other computes; they fit because scale
    # and bias are fetched late.
    room = min(tuning.held_bytes, HELD_BYTES_AT_MAX_THREADS)
    # Four blocks of 256 where the rows are short enough: planes of 128x128 93%, by two blocks of 512 85%.
    four = Choice(
        LONG_THREADS // 2, tuning.long_elements, min(room, LONG_HELD_BYTES), late=True, min_blocks=2 * LONG_BLOCKS
    )
    pair = Choice(LONG_THREADS, tuning.long_elements, min(room, LONG_HELD_BYTES), late=True, min_blocks=LONG_BLOCKS)
    several = (replace(pair, threads=LONG_THREADS * n, cluster=n) for n in (2, 4, 8) if n <= arch.cluster)
    whole = Choice(1024, tuning.block_elements, room)
    last = Choice(1024, max(tuning.block_elements, tuning.long_elements), room, late=True)
    # A cluster's barriers cost more than a second block hides: only for what no block can hold.
    one, clusters = (whole, last), tuple(several)
    return (
        *lanes,
        *(full if shifted else ()),
        *blocks,
        *((four, pair) if tuning.long_elements else ()),
        *((*clusters, *one) if few else (*one, *clusters)),
    )


def _width(placed: tuple[Placed, ...], columns: int, aligned: bool, small: bool, tuning: Tuning) -> tuple[int, bool]:
    """Return (elements per vector, whether rows begin and end inside vectors).

    The widest vector for the element sizes of what runs through rows and columns. Where it does not divide the row,
    one of half the width may; below that rows are shifted, because narrow accesses cost more instructions than memory
    leaves time for: softmax over 197 columns took 20 per element, 40% over the time of a copy.
    """
    if not aligned:
        return 1, False
    sizes = tuple(p.operand.size for p in placed if p.dense and p.along == "columns")
    widest = vector_width(sizes or tuple(p.operand.size for p in placed))
    # Positions of 8 bytes beside 16-bit scores: two accesses of a thread side by side are all that a warp coalesces.
    widest = tuning.width or min(widest, 32 // max((p.operand.size for p in placed if p.along == "columns"), default=1))
    divides = math.gcd(columns, widest)
    if small:
        return min(divides, SMALL_ELEMENTS), False
    if tuning.shifted and sizes and divides < widest // 2 and columns > widest:
        return widest, True
    return divides, False


def constants(bits: int, outer: Layout, inner: Layout, placed: tuple[Placed, ...], split: Split, threads: int) -> str:
    outer_slots = sum(p.outer_slot >= 0 for p in placed)
    row_slots = sum(p.row_slot >= 0 for p in placed)
    along = any(p.operand.is_output and p.along != "scalar" for p in placed)
    lookups = sum(p.lookup is not None for p in placed)
    return (
        f"using Index = {launch_plan.index_type(bits)};\n"
        f"constexpr int OUTER_RANK = {len(outer.extents)}, OUTER_SLOTS = {max(outer_slots, 1)};\n"
        f"constexpr int ROW_RANK = {len(inner.extents)}, ROW_SLOTS = {max(row_slots, 1)};\n"
        f"constexpr int LOOKUPS = {max(lookups, 1)};\n"
        f"constexpr int WIDTH = {split.width}, ITEMS = {split.items}, THREADS = {threads}, "
        f"ROW_THREADS = {split.threads};\n"
        f"constexpr bool EXACT = {'true' if split.exact else 'false'}, "
        f"SHIFTED = {'true' if split.shifted else 'false'};\n"
        f"constexpr int INNER_ITEMS = {split.inner_items}, CLUSTER = {split.cluster};\n"
        f"constexpr int AHEAD = {_ahead(placed, split)};\n"
        f"constexpr bool ALONG = {'true' if along else 'false'};\n\n"
    )


def _ahead(placed: tuple[Placed, ...], split: Split) -> int:
    """Vectors that a thread fetches together as it walks along a row."""
    held = sum(p.operand.size for p in placed if p.reduced and p.along != "scalar") * split.width
    return max(1, min(4, LOOP_BYTES_IN_FLIGHT // max(held, 1)))


def around(placed: tuple[Placed, ...], split: Split) -> str:
    """Return what surrounds the core: operands of the row's vectors, early and late, and what is one per row."""
    inputs, outputs = ([p for p in placed if p.operand.is_output is output] for output in (False, True))
    early, late = (
        [p for p in inputs if p.along != "scalar" and split.fetches_late(p) is late] for late in (False, True)
    )
    scalars = Held("RowHeld", "scalars", tuple(_load(p) for p in inputs if p.along == "scalar"))
    held, lates = Held("Held", "held", tuple(map(_load, early))), Held("Late", "late", tuple(map(_load, late)))
    where = "const OuterPlace& at, const Parameters& p"
    vector = f"const Pointers& row, const Span& span, {where}"
    return "".join((
        access.pointers(p.operand for p in placed),
        *(group.hold() for group in (scalars, held, lates)),
        _pointers_at(placed, split.shifted),
        scalars.load("load_scalars", "const Pointers& row"),
        # Dense operands by one function, the others, which all rows share or many, by another one.
        held.fill("load_dense", "const Pointers& row, const Span& span", [_load(p) for p in early if p.dense]),
        held.fill("load_shared_operands", vector, [_load(p) for p in early if not p.dense]),
        lates.load("load_late", vector),
        element(
            (p.operand.name for p in inputs), (held, lates, scalars),
            "const Held& held, const Late& late, const RowHeld& scalars, int lane",
        ),
        "// As the reductions see it, which read nothing that is late.\n"
        "DEVICE Element element(const Held& held, const RowHeld& scalars, int lane) {\n"
        "  return element(held, Late{}, scalars, lane);\n}\n",
        store(
            "store_all", f"const Pointers& row, const Result (&result)[WIDTH], const Span& span, {where}",
            (_store(p) for p in outputs if p.along != "scalar"), "WIDTH",
        ),
        _store_scalars([p for p in outputs if p.along == "scalar"], where),
    ))  # fmt: skip


def _pointers_at(placed: tuple[Placed, ...], shifted: bool) -> str:
    tables = [p for p in placed if p.lookup is not None]
    by_name = {p.operand.name: p for p in placed}

    def moved(p: Placed) -> str:
        pointer = f"to.{p.operand.name}"
        if p.outer == "strided":
            pointer += f" + at.offset(p.outer_stride[{p.outer_slot}])"
        elif p.outer == "full":
            pointer += " + at.row * p.columns" if p.along == "columns" else " + at.row"
        if p.along == "columns":
            pointer += " + thread * WIDTH - at.shift"
        if p.lookup is not None:
            return f"looked_up({pointer}, {moved(by_name[f'in{p.lookup.number}'])}, p.lookup[{tables.index(p)}])"
        # Settled only where lanes are reached one by one: elsewhere it would cost an addition.
        return f"settled({pointer})" if p.along == "columns" and shifted else pointer

    return (
        "DEVICE Pointers pointers_at(const Pointers& to, int thread, const OuterPlace& at, const Parameters& p) {\n"
        f"  return {{{', '.join(moved(p) for p in placed)}}};\n"
        "}\n"
    )


def _load(p: Placed) -> Load:
    kind = f"Splat<{p.operand.stored}>" if p.along in ("spread", "scalar") else f"Pack<{p.operand.stored}, WIDTH>"
    return Load(p.operand.name, kind, _fetch(p))


def _fetch(p: Placed) -> str:
    row, stride = f"row.{p.operand.name}", f"p.row_stride[{p.row_slot}]"
    if p.lookup is not None:
        return f"load_row({row}, span)"
    match p.along:
        case "scalar":
            return f"load_splat({row})"
        case "columns":
            return f"load_columns<{str(p.dense).lower()}>({row}, span)"
        case "spread":
            return f"load_spread({row}, span, {stride}, p)"
        case "runs":
            return f"load_run({row}, span, {stride}, p)"
        case _:
            return f"load_gather({row}, span, at, {stride}, p)"


def _store(p: Placed) -> Store:
    name, stride = p.operand.name, f"p.row_stride[{p.row_slot}]"
    match p.along:
        case "columns":
            call = f"store_columns<{str(p.dense).lower()}>(row.{name}, {name}, span)"
        case "runs":
            call = f"store_run(row.{name}, {name}, span, {stride}, p)"
        case _:
            call = f"store_first(row.{name}, {name}, span, at, {stride}, p)"
    return Store.of(p.operand, _condition(p) + call)


def _store_scalars(outputs: list[Placed], where: str) -> str:
    lines = [f"  {_condition(p)}store_scalar(row.{p.operand.name}, result.{p.operand.field});\n" for p in outputs]
    return f"DEVICE void store_scalars(const Pointers& row, const Result& result, {where}) {{\n{''.join(lines)}}}\n"


def _condition(p: Placed) -> str:
    return f"if (at.first(p.outer_stride[{p.outer_slot}])) " if p.outer == "strided" else ""


def parameters(rows: int, columns: int, outer: Layout, inner: Layout, placed: tuple[Placed, ...], bits: int) -> bytes:
    words = [rows, columns]
    for space, numbers in ((outer, [p.outer_slot for p in placed]), (inner, [p.row_slot for p in placed])):
        words += [*divisors(space.extents, bits), *strided(space.strides, numbers, len(space.extents))]
    looked_up = [word for p in placed if p.lookup is not None for word in (p.lookup.rows, p.lookup.length)]
    words.extend(looked_up or (0, 0))
    return launch_plan.packed(words, bits)
