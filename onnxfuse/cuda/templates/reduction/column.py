"""Launch plans of the column template: strided reductions (across contiguous elements) with surrounding
pointwise work."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit.access import Operand, Pointer, RegisterGroup, Store, element, store
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.source import CLUSTER, DEVICE, KernelSource, constants, generated, template
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.plan_request import PlanRequest
from onnxfuse.cuda.templates.reduction import costs
from onnxfuse.cuda.templates.reduction.problem import Reduced
from onnxfuse.cuda.templates.reduction.variant import RowVariant
from onnxfuse.cuda.templates.reduction.vector_operands import VectorOperand, pointers_at, space_words
from onnxfuse.symbolic.branching import gcd, larger, most, settled, smaller
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape, StridedLayout, divisor, vector_width


@dataclass(frozen=True)
class ColumnPartition:
    """Partition of the work among blocks and threads."""

    width: int
    """Elements per vector."""
    across: int
    """Adjacent vectors per block, a power of 2."""
    rows: int
    """Threads of a block that share the reduced axis."""
    cluster: int
    """Cluster size: blocks that share it."""
    items: int
    """Register-resident vectors per thread; 0: it iterates over the axis."""
    prefetch: int
    """Prefetch depth of an iterating thread, in vectors."""
    parts: int = 1
    """Blocks that share it through memory, if it is read only once."""


@dataclass(frozen=True)
class Way:
    """A candidate partition of the work."""

    across: int
    """Adjacent vectors."""
    threads: int
    """Threads per block."""
    cluster: int
    """Blocks that share the reduced axis."""

    @property
    def rows(self) -> int:
        """Threads of a block that share it."""
        return self.threads // self.across


@dataclass(frozen=True)
class Results:
    """Bytes of intermediate results per output element."""

    partial: int
    """Per partial result of a thread, or several."""
    finished: int
    """Of the final result, including values derived from it."""

    def shared_bytes(self, across: int, rows: int) -> int:
        """Return the shared memory of a block per thread across: partial results of groups and of the block, final
        results."""
        return across * ((max(1, across * rows // max(across, 32)) + 1) * self.partial + self.finished)


@dataclass(frozen=True)
class ColumnSpaces:
    """The dimensions of the work, with each group merged as far as possible."""

    outer: StridedLayout
    reduced: StridedLayout
    inner: StridedLayout


def plan(work: Reduced) -> LaunchPlan:
    """Return the launch plan of a program that does not reduce the innermost axis.

    Row lookups are unsupported: adjacent elements would come from different rows.
    """
    if work.lookups:
        raise UnsupportedError("Gather by computed numbers beside a reduction across neighbours")
    entry, program, operands = work.request.entry, work.program, work.operands
    spaces = ColumnSpaces(
        work.layout(tuple(d for d in work.free if d < max(work.axes))),
        work.layout(work.axes),
        work.layout(tuple(d for d in work.free if d > max(work.axes))),
    )
    placed = _access(operands, spaces, frozenset(f"in{i}" for i in expressions.reduced_inputs(program)))
    outer, count, inner = (math.prod(s.extents) for s in (spaces.outer, spaces.reduced, spaces.inner))
    bits = launch_plan.index_bits(max(math.prod(work.full), outer, inner))
    # Full-size outputs, and those as big along part of the reduced axis. If none depends on a reduction, all are
    # written in the first pass, which avoids a second read.
    whole = frozenset(p.operand.name for p in placed if p.operand.is_output and any(spaces.reduced.strides[p.slot]))
    levels = program.levels
    early = bool(whole) and all(not levels[o.value] for n, o in enumerate(program.outputs) if f"out{n}" in whole)
    again = (bool(whole) and not early) or len(expressions.phases(program)) > 1
    results = Results(expressions.accumulator_bytes(program, bits), expressions.reduced_bytes(program))
    split = share_out(placed, spaces, outer, count, inner, again, results, work.request)
    tiles = -(-inner // (split.across * split.width))
    tiles_all = outer * tiles
    shared = split.parts > 1
    pointers: tuple[Operand | Pointer, ...] = (*operands, access.scratch(used=shared))

    kernel = KernelSource(
        entry,
        (
            *(template(f) for f in (DEVICE, CLUSTER, "include/math.cuh", "include/memory.cuh")),
            generated(entry, _constants(bits, spaces, placed, split, bool(whole), early) + expressions.source(program)),
            *(template(f) for f in ("include/coordinates.cuh", "include/reduce.cuh", "reduction/column.cuh")),
            generated(entry, _around(placed, pointers, whole if early else frozenset())),
            template("reduction/column.cu"),
            generated(
                entry,
                entry_point(entry, "column", work.request.op, pointers, work.request.tuning.min_blocks, split.cluster),
            ),
        ),
    )
    counters = -(-tiles_all // 4) * 4  # words: the data that follows starts at a 16-byte boundary
    partial_bytes = tiles_all * split.parts * split.across * split.width * results.partial
    return LaunchPlan(
        kernel=kernel,
        grid=(tiles_all * split.cluster * split.parts, 1, 1),
        block=(split.across * split.rows, 1, 1),
        shared_bytes=0,
        parameters=_parameters(count, inner, tiles, tiles_all, split.parts, counters, spaces, bits),
        output_shapes=work.request.output_shapes,
        scratch_bytes=4 * counters + partial_bytes if shared else 0,
        counter_bytes=4 * counters if shared else 0,
    )


def _access(operands: tuple[Operand, ...], spaces: ColumnSpaces, reduced: frozenset[str]) -> tuple[VectorOperand, ...]:
    def along(strides: Shape) -> str:
        if not any(strides):
            return "splat"
        return "vector" if strides == spaces.inner.contiguous else "gather"

    return tuple(
        VectorOperand(o, n, along(s), o.name in reduced)
        for n, (o, s) in enumerate(zip(operands, spaces.inner.strides, strict=True))
    )


def share_out(
    placed: tuple[VectorOperand, ...],
    spaces: ColumnSpaces,
    outer: int,
    count: int,
    inner: int,
    again: bool,
    results: Results,
    request: PlanRequest[RowVariant],
) -> ColumnPartition:
    """Return the partition of [outer, count, inner] elements.

    `again`: the reduced operands are needed a second time, and are register-resident if they fit.
    """
    arch, tuning = request.arch, request.tuning
    cost = costs.column(arch)
    width = _width(placed, spaces, inner, request.aligned, tuning)
    while width > 1 and width * results.partial * 2 * 32 > cost.shared_bytes:
        width //= 2
    vectors = max(1, -(-inner // width))
    size = max(1, sum(p.operand.size * (width if p.along != "splat" else 1) for p in placed if p.reduced))
    stages = max(1, min(8, tuning.column_in_flight // size))
    # Softmax over 21 channels reaches 87% of a copy by blocks of 128 threads, 76% by 256.
    threads_first = tuning.column_threads or 128
    if not again:
        return _walk(placed, vectors, width, outer, count, stages, results, arch, tuning)
    widest = 1 << larger(0, vectors - 1).bit_length()

    def items(team: Way) -> int:
        return larger(1, -(-count // (team.rows * team.cluster)))

    def tries(team: Way) -> bool:
        if results.shared_bytes(team.across, team.rows) * width > cost.shared_bytes or team.across > widest:
            return False
        return (
            team.cluster == 1
            or count >= team.cluster * team.rows * cost.least_rows
            or items(team) * size > cost.held_bytes
        )

    def score(team: Way) -> tuple[float, ...]:
        # Prefer reading once to twice; then an even load on all multiprocessors; then segments of at least a line; then
        # small clusters.
        blocks = outer * -(-vectors // team.across) * team.cluster
        busy = blocks / (arch.sm_count * -(-blocks // arch.sm_count))
        busy *= smaller(1.0, blocks * team.threads / (arch.sm_count * cost.busy_threads))
        filled = vectors / (team.across * -(-vectors // team.across))
        filled *= 0.5 + 0.5 * count / (items(team) * team.rows * team.cluster)
        busy *= cost.cluster_share if team.cluster > 1 else 1.0
        busy *= cost.large_share if team.threads > 256 else 1.0
        segment = min(1.0, team.across * width * _size(placed) / tuning.row_segment)
        resident = items(team) * size <= cost.held_bytes
        return (resident, round(busy * filled * (0.5 + 0.5 * segment), 2), -team.cluster, team.across)

    best = most(_ways(threads_first, arch), score, tries)
    assert best is not None
    per_thread = items(best)
    return ColumnPartition(
        width, best.across, best.rows, best.cluster, per_thread if per_thread * size <= cost.held_bytes else 0, stages
    )


def _walk(
    placed: tuple[VectorOperand, ...],
    vectors: int,
    width: int,
    outer: int,
    count: int,
    stages: int,
    results: Results,
    arch: Arch,
    tuning: RowVariant,
) -> ColumnPartition:
    """Return the partition for a single iteration along the reduced axis; several blocks share it if there are too few
    otherwise."""
    cost = costs.column(arch)
    segment = max(1, cost.walk_segment // (width * _size(placed)))
    across = 1 << max(0, min(segment, vectors) - 1).bit_length()
    threads = tuning.column_threads or cost.walk_threads
    rows = max(1, min(threads // across, 1 << max(0, (count // cost.walk_rows).bit_length() - 1)))
    while across < vectors and across * rows < cost.fewest_threads:
        across *= 2
    # Exchanges are between the threads of a warp.
    rows = max(rows, 32 // across)

    def shared_bytes() -> int:
        return results.shared_bytes(across, rows) + across * max(1, rows // width) * results.partial

    while across * rows > 32 and shared_bytes() * width > cost.shared_bytes:
        across, rows = (across, rows // 2) if rows > 1 else (across // 2, rows)
    blocks = outer * -(-vectors // across)
    most = count // (rows * stages * 2)
    parts = max(1, min(cost.walk_blocks * arch.sm_count // blocks, most, cost.most_parts))
    return ColumnPartition(width, across, rows, 1, 0, stages, parts)


def _ways(threads: int, arch: Arch) -> Iterator[Way]:
    """Return the candidate block and cluster shapes."""
    for across in (64, 32, 16, 8, 4, 2, 1):
        for several in (max(threads, 32), *([512] if threads < 512 else [])):
            yield from (Way(across, several, c) for c in (1, 2, 4, 8) if c <= arch.isa.cluster)


def _size(placed: tuple[VectorOperand, ...]) -> int:
    """Return the element size of the smallest operand that lies along the vectors."""
    return min((p.operand.size for p in placed if p.along == "vector" and p.reduced), default=1)


def _width(
    placed: tuple[VectorOperand, ...], spaces: ColumnSpaces, inner: int, aligned: bool, tuning: RowVariant
) -> int:
    """Return the vector width: whole, aligned vectors along `inner`."""
    if not aligned:
        return 1
    vectors = [p for p in placed if p.along == "vector"]
    # The reduced operands dominate the work: 8-byte indices do not narrow the vectors.
    deciding = [p for p in vectors if p.reduced] or vectors or list(placed)
    widest = tuning.width or vector_width(tuple(p.operand.size for p in deciding))
    steps = [s for p in vectors for s in (*spaces.outer.strides[p.slot], *spaces.reduced.strides[p.slot])]
    return settled(gcd(widest, inner, *steps))


def _constants(
    bits: int, spaces: ColumnSpaces, placed: tuple[VectorOperand, ...], split: ColumnPartition, whole: bool, early: bool
) -> str:
    facts = {
        "OUTER_RANK": len(spaces.outer.extents), "REDUCED_RANK": len(spaces.reduced.extents),
        "INNER_RANK": len(spaces.inner.extents), "OPERANDS": len(placed),
        "WIDTH": split.width, "ACROSS": split.across, "ROWS": split.rows, "THREADS": split.across * split.rows,
        "CLUSTER": split.cluster, "ITEMS": split.items, "AHEAD": split.prefetch,
        "SPLIT": split.parts > 1, "FULL": whole and not early, "EARLY": early,
    }  # fmt: skip
    return f"using Index = {launch_plan.index_type(bits)};\n" + constants(facts)


def _around(placed: tuple[VectorOperand, ...], pointers: tuple[Operand | Pointer, ...], early: frozenset[str]) -> str:
    """Return the code around the core; outputs in `early` are stored by a separate function."""
    inputs, outputs = ([p for p in placed if p.operand.is_output is output] for output in (False, True))
    group = RegisterGroup("Held", "held", tuple(p.load(_at(p), "inner_stride") for p in inputs if p.reduced))
    late = RegisterGroup("Late", "late", tuple(p.load(_at(p), "inner_stride") for p in inputs if not p.reduced))
    reach = "const Reach& at, Index column, const Parameters& p"
    to = f"const Pointers& base, const Result (&result)[WIDTH], const Outer& outer, {reach}"
    return "".join((
        access.pointers(pointers),
        group.hold(),
        late.hold(),
        pointers_at(placed),
        group.fill("load_all", f"const Pointers& base, {reach}"),
        late.load("load_late", f"const Pointers& base, {reach}"),
        element((p.operand.name for p in inputs), (group, late), "const Held& held, const Late& late, int w"),
        store("store_early", to, (_store(p) for p in outputs if p.operand.name in early), "WIDTH"),
        store("store_all", to, (_store(p) for p in outputs if p.operand.name not in early), "WIDTH"),
    ))  # fmt: skip


def _at(p: VectorOperand) -> str:
    return f"base.{p.operand.name} + at.offset(p.reduced_stride[{p.slot}])"


def _store(p: VectorOperand) -> Store:
    first = f"outer.first(p.outer_stride[{p.slot}]) && at.first(p.reduced_stride[{p.slot}])"
    if p.along == "vector":
        return Store.of(p.operand, f"if ({first}) store_values<WIDTH>({_at(p)}, {p.operand.name})")
    return Store.of(
        p.operand, f"if ({first}) store_first({_at(p)}, {p.operand.name}, column, p.inner_stride[{p.slot}], p)"
    )


def _parameters(
    count: int, inner: int, tiles: int, blocks: int, parts: int, counters: int, spaces: ColumnSpaces, bits: int
) -> bytes:
    words = [count, inner, *divisor(tiles, bits), *divisor(blocks, bits), parts, counters]
    words += space_words((spaces.outer, spaces.reduced, spaces.inner), bits)
    return launch_plan.packed(words, bits)
