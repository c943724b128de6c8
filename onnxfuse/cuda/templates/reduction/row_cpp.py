"""Source generation of the row template: constants, code around the cores, and parameters."""

from dataclasses import replace

from onnxfuse.codegen.emit import access, source
from onnxfuse.codegen.emit.access import Load, RegisterGroup, Store, element, store
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.templates.reduction.row_operands import RowOperand
from onnxfuse.cuda.templates.reduction.row_split import RowPartition
from onnxfuse.symbolic.strides import StridedLayout, divisors
from onnxfuse.symbolic.strides import rows as strided

KEPT = "kept"
"""Name of the pointer to what a block keeps in its shared memory."""


def constants(
    bits: int,
    outer: StridedLayout,
    inner: StridedLayout,
    placed: tuple[RowOperand, ...],
    split: RowPartition,
    threads: int,
    in_flight: int,
    extremes: bool,
) -> str:
    """Return the constants of row.cuh and of the core.

    `in_flight`: input bytes in flight per thread that iterates over its row.
    """
    along = any(p.operand.is_output and p.along != "scalar" for p in placed)
    facts = {
        "OUTER_RANK": len(outer.extents), "OUTER_SLOTS": max(sum(p.outer_slot >= 0 for p in placed), 1),
        "ROW_RANK": len(inner.extents), "ROW_SLOTS": max(sum(p.row_slot >= 0 for p in placed), 1),
        "LOOKUPS": max(sum(p.lookup is not None for p in placed), 1),
        "WIDTH": split.width, "ITEMS": split.items, "THREADS": threads, "ROW_THREADS": split.threads,
        "EXACT": split.exact, "SHIFTED": split.shifted, "INNER_ITEMS": split.inner_items, "CLUSTER": split.cluster,
        "AHEAD": _prefetch(placed, split, in_flight), "ALONG": along, "EXTREMES": extremes,
    }  # fmt: skip
    return f"using Index = {launch_plan.index_type(bits)};\n" + source.constants(facts)


def _prefetch(placed: tuple[RowOperand, ...], split: RowPartition, in_flight: int) -> int:
    """Return the prefetch depth, in vectors, of a thread that iterates over its row."""
    item_bytes = sum(p.operand.size for p in placed if p.reduced and p.along != "scalar") * split.width
    return max(1, min(4, in_flight // max(item_bytes, 1)))


def leaves_extremes(placed: tuple[RowOperand, ...], split: RowPartition, output: int | None) -> bool:
    """Return whether the core can leave the extremes of an output of which each row's elements are its own."""
    return split.items > 0 and any(p.operand.name == f"out{output}" and p.dense for p in placed)


def around(
    placed: tuple[RowOperand, ...], split: RowPartition, extremes_of: int | None, kept: RowOperand | None = None
) -> str:
    """Return the code around the core: operands of the row's vectors, loaded early or late, and per-row operands.

    `extremes_of`: the output of which the core leaves the extremes; None: of none. `kept`: the output that each block
    keeps in its shared memory, where all of them compute all rows.
    """
    left = access.scratch(used=extremes_of is not None)
    value = "0.0f" if extremes_of is None else f"result.b{extremes_of}"
    inputs, outputs = ([p for p in placed if p.operand.is_output is output] for output in (False, True))
    early, late = (
        [p for p in inputs if p.along != "scalar" and split.fetches_late(p) is late] for late in (False, True)
    )
    scalars = RegisterGroup("RowHeld", "scalars", tuple(_load(p) for p in inputs if p.along == "scalar"))
    group_of_row, lates = (
        RegisterGroup("Held", "held", tuple(map(_load, early))),
        RegisterGroup("Late", "late", tuple(map(_load, late))),
    )
    where, first = "const OuterPlace& at, const Parameters& p", "" if kept is None else "if (block_index() == 0) "
    vector = f"const Pointers& row, const Span& span, {where}"
    return "".join((
        access.pointers((*(p.operand for p in placed), *(() if kept is None else (_kept(kept).operand,)), left)),
        f"DEVICE float ranged(const Result& result) {{ return {value}; }}\n",
        *(group.hold() for group in (scalars, group_of_row, lates)),
        _pointers_at(placed if kept is None else (*placed, _kept(kept)), split.shifted),
        scalars.load("load_scalars", "const Pointers& row"),
        # Dense operands are loaded by one function; those shared by all or many rows by another one.
        group_of_row.fill("load_dense", "const Pointers& row, const Span& span", [_load(p) for p in early if p.dense]),
        group_of_row.fill("load_shared_operands", vector, [_load(p) for p in early if not p.dense]),
        lates.load("load_late", vector),
        element(
            (p.operand.name for p in inputs), (group_of_row, lates, scalars),
            "const Held& held, const Late& late, const RowHeld& scalars, int w",
        ),
        "// As the reductions see it, which read nothing that is late.\n"
        "DEVICE Element element(const Held& held, const RowHeld& scalars, int w) {\n"
        "  return element(held, Late{}, scalars, w);\n}\n",
        store(
            "store_all", f"const Pointers& row, const Result (&result)[WIDTH], const Span& span, {where}",
            (*(_store(p, first) for p in outputs if p.along != "scalar"), *(() if kept is None else (_keep(kept),))),
            "WIDTH",
        ),
        _store_scalars([p for p in outputs if p.along == "scalar"], where, first),
    ))  # fmt: skip


def _kept(output: RowOperand) -> RowOperand:
    """Return where an output is kept in shared memory."""
    return replace(output, operand=replace(output.operand, name=KEPT))


def _pointers_at(placed: tuple[RowOperand, ...], shifted: bool) -> str:
    tables = [p for p in placed if p.lookup is not None]
    by_name = {p.operand.name: p for p in placed}

    def moved(p: RowOperand) -> str:
        pointer = f"to.{p.operand.name}"
        if p.outer == "strided":
            pointer += f" + at.offset(p.outer_stride[{p.outer_slot}])"
        elif p.outer == "full":
            pointer += " + at.row * p.columns" if p.along == "columns" else " + at.row"
        if p.along == "columns":
            pointer += " + thread * WIDTH - at.shift"
        if p.lookup is not None:
            return f"looked_up({pointer}, {moved(by_name[f'in{p.lookup.number}'])}, p.lookup[{tables.index(p)}])"
        # Only where elements are accessed singly: elsewhere it would cost an addition.
        return f"settled({pointer})" if p.along == "columns" and shifted else pointer

    return (
        "DEVICE Pointers pointers_at(const Pointers& to, int thread, const OuterPlace& at, const Parameters& p) {\n"
        f"  return {{{', '.join(moved(p) for p in placed)}}};\n"
        "}\n"
    )


def _load(p: RowOperand) -> Load:
    kind = f"Splat<{p.operand.stored}>" if p.along in ("spread", "scalar") else f"Pack<{p.operand.stored}, WIDTH>"
    return Load(p.operand.name, kind, _fetch(p))


def _fetch(p: RowOperand) -> str:
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


def _store(p: RowOperand, condition: str = "") -> Store:
    name, stride = p.operand.name, f"p.row_stride[{p.row_slot}]"
    match p.along:
        case "columns":
            call = f"store_columns<{str(p.dense).lower()}>(row.{name}, {name}, span)"
        case "runs":
            call = f"store_run(row.{name}, {name}, span, {stride}, p)"
        case _:
            call = f"store_first(row.{name}, {name}, span, at, {stride}, p)"
    return Store.of(p.operand, condition + _condition(p) + call)


def _keep(output: RowOperand) -> Store:
    """Return the store of an output's vectors in shared memory."""
    of = output.operand
    return Store(KEPT, of.stored, of.field, f"keep_columns(row.{KEPT}, {KEPT}, span)")


def _store_scalars(outputs: list[RowOperand], where: str, first: str) -> str:
    lines = [
        f"  {first}{_condition(p)}store_scalar(row.{p.operand.name}, result.{p.operand.field});\n" for p in outputs
    ]
    return f"DEVICE void store_scalars(const Pointers& row, const Result& result, {where}) {{\n{''.join(lines)}}}\n"


def _condition(p: RowOperand) -> str:
    return f"if (at.first(p.outer_stride[{p.outer_slot}])) " if p.outer == "strided" else ""


def parameters(
    rows: int, columns: int, outer: StridedLayout, inner: StridedLayout, placed: tuple[RowOperand, ...], bits: int
) -> tuple[int, ...]:
    """Return the fields of the kernels' `Parameters`."""
    words = [rows, columns]
    for space, numbers in ((outer, [p.outer_slot for p in placed]), (inner, [p.row_slot for p in placed])):
        words += [*divisors(space.extents, bits), *strided(space.strides, numbers, len(space.extents))]
    looked_up = [word for p in placed if p.lookup is not None for word in (p.lookup.rows, p.lookup.length)]
    return (*words, *(looked_up or (0, 0)))
