"""The generated text of a product's epilogue: what it reads beside the products, and how its results are stored."""

from onnxfuse.kernels.emit import expressions
from onnxfuse.kernels.ir import types
from onnxfuse.kernels.ir.program import Program
from onnxfuse.kernels.templates.gemm.work import Work
from onnxfuse.model.fused import Slot


def operands(work: Work, staged: int | None) -> str:
    """Return the C++ types that hold the operands, and how they are loaded."""
    op, parts, kinds = work.op, work.parts, work.kinds
    epilogue = parts.epilogues[0]
    first = work.first_operand
    stored = [types.TYPES[op.inputs[i]].stored for i in epilogue.operands]
    live = [i for i in expressions.live_inputs(epilogue.program) if i >= first]
    used = {f"in{i}": (kinds[i - first], stored[i - first]) for i in live}
    of_lane = [
        ", ".join(f"(const {stored[i - first]}*)in{epilogue.operands[i - first]}" for i in live)
        for epilogue in parts.epilogues
    ]
    choices = "".join(f"    if (lane == {k}) return {{{p}}};\n" for k, p in list(enumerate(of_lane))[1:])
    pointers = "".join(f"  const void* in{i};\n" for i in range(len(op.inputs)))
    return (
        "struct Pointers {\n" + "".join(f"  const {t}* {n};\n" for n, (_, t) in used.items()) + "};\n"
        f"struct Operands {{\n{pointers}  DEVICE Pointers of(int lane) const {{\n{choices}"
        f"    return {{{of_lane[0]}}};\n  }}\n{_factors(work)}}};\n"
        + _held("RowHeld", "load_rows", used, ("row", "uniform"))
        + _held("ColumnHeld", "load_column", used, ("column",))
        + _held("CellHeld", "load_cell", used, ("cell",), f"in{staged}")
        + _element(first, epilogue.program, kinds)
    )


def _factors(work: Work) -> str:
    """Return the members that give the plain kernel the factors by their types."""
    products = work.parts.products
    stored = types.TYPES[work.parts.dtype].stored
    choices = "".join(
        f"    if (NUMBER == {k}) return (const {stored}*)in{p.b};\n" for k, p in list(enumerate(products))[1:]
    )
    left = f"  DEVICE const {stored}* a() const {{ return (const {stored}*)in{products[0].a}; }}\n"
    return (
        ("" if work.parts.prologue is not None else left)
        + f"  template <int NUMBER> DEVICE const {stored}* b() const {{\n{choices}"
        f"    return (const {stored}*)in{products[0].b};\n  }}\n"
    )


def _held(name: str, function: str, used: dict[str, tuple[str, str]], kinds: tuple[str, ...], later: str = "") -> str:
    """Return a struct with the operands of these kinds, and the function that loads all but the one for `later`."""
    mine = {n: (kind, t) for n, (kind, t) in used.items() if kind in kinds}
    by_row = function == "load_rows"
    holder = {
        "row": "Splat<{}> {}[2];",
        "uniform": "Splat<{}> {};",
        "column": "Pack<{}, W> {};",
        "cell": "Pack<{}, W> {};",
    }
    load = {
        "row": "for (int half = 0; half < 2; ++half) held.{0}[half] = load_row(from.{0}, at, down + half * 8);",
        "uniform": "held.{0} = load_splat(from.{0});",
        "column": "held.{0} = load_column<W>(from.{0}, at, right);",
        "cell": "held.{0} = load_cell<W>(from.{0}, at, down, right);",
    }
    head, held = ("", name) if by_row else ("template <int W> ", f"{name}<W>")
    extra = {"load_rows": ", int down", "load_column": ", int right", "load_cell": ", int down, int right"}[function]
    return (
        f"{head}struct {name} {{\n"
        + "".join(f"  {holder[kind].format(t, n)}\n" for n, (kind, t) in mine.items())
        + f"}};\n{head}DEVICE {held} {function}(const Pointers& from, const Place& at{extra}) {{\n"
        + f"  {held} held = {{}};\n"
        + "".join(f"  {load[kind].format(n)}\n" for n, (kind, _) in mine.items() if n != later)
        + "  return held;\n}\n"
    )


def _element(first: int, program: Program, kinds: tuple[str, ...]) -> str:
    """Return what the body reads for a cell: `half` of the thread's two rows, `next` of its neighbouring columns."""

    def value(i: int) -> str:
        if i < first:
            return f"product[{i}]"
        match kinds[i - first]:
            case "row":
                return f"rows.in{i}[half].get(next)"
            case "uniform":
                return f"rows.in{i}.get(next)"
            case kind:
                return f"{kind}.in{i}.get(next)"

    values = ", ".join(value(i) for i in expressions.live_inputs(program))
    return (
        "template <int W>\nDEVICE Element element(const float* product, const ColumnHeld<W>& column, "
        f"const CellHeld<W>& cell, const RowHeld& rows, int half, int next) {{\n  return {{{values}}};\n}}\n"
    )


def results(work: Work) -> str:
    """Return the outputs' pointers and how neighbouring elements of each are stored."""
    epilogues = work.parts.epilogues
    stores = []
    for n, output in enumerate(work.program.outputs):
        stored = types.TYPES[output.dtype].stored
        choices = "".join(
            f"lane == {k} ? to.out{epilogue.outputs[n]} : " for k, epilogue in list(enumerate(epilogues))[1:]
        )
        stores.append(
            f"  Stored<{stored}>::Value value{n}[W];\n"
            f"  UNROLLED for (int i = 0; i < W; ++i) value{n}[i] = result[i].b{n};\n"
            f"  store_values<W>(({stored}*)({choices}to.out{epilogues[0].outputs[n]}) + offset, value{n});\n"
        )
    offset = _offset(work.op.slot)
    if work.stored:
        offset = "stores.layouts[lane].at(at.row, at.column)"
    return (
        result_pointers(work) + "// W neighbouring cells of a row.\n"
        "template <int W>\n"
        "DEVICE void store_results(const Results& to, const Stores& stores, int lane, const Place& at, "
        "const Result (&result)[W]) {\n"
        f"  const unsigned long long offset = {offset};\n" + "".join(stores) + "}\n"
    )


def result_pointers(work: Work) -> str:
    fields = "".join(f"  void* out{n};\n" for n in range(len(work.op.outputs)))
    return f"struct Results {{\n{fields}}};\n"


def _offset(slot: Slot | None) -> str:
    """Return where a cell of an output lies."""
    if slot is None:
        return "(unsigned long long)at.row * at.n + at.column"
    return f"(unsigned long long)at.row * {slot.total} + {slot.first} + at.column"
