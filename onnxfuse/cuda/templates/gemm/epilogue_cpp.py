"""Source generation of a product's epilogue: loads of its operands, and stores of its results."""

from collections.abc import Iterable

from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit.access import Load, RegisterGroup, Store
from onnxfuse.cuda.templates.gemm.body import Epilogue, PackedWeight, Product
from onnxfuse.cuda.templates.gemm.work import GemmSource
from onnxfuse.model.fused import Slot
from onnxfuse.symbolic import element_types

_LOADS = {
    "row": ("Splat<{}>", "load_row(from.{}, at, down + half * 8)"),
    "inner": ("Splat<{}>", "load_inner(from.{}, at, down + half * 8)"),
    "uniform": ("Splat<{}>", "load_splat(from.{})"),
    "literal": ("Literal<{}>", "{{from.{}}}"),
    "column": ("Pack<{}, W>", "load_column<W>(from.{}, at, right)"),
    "cell": ("Pack<{}, W>", "load_cell<W>(from.{}, at, down, right)"),
}
"""Registers and loads of an operand per thread, by its layout relative to the output."""


def around(work: GemmSource, staged: int | None) -> str:
    """Return `Operands`, as passed by a launch, and how a thread loads and holds them."""
    op, parts, kinds = work.op, work.parts, work.kinds
    epilogue, first = parts.epilogues[0], work.first_operand
    live = [i for i in expressions.live_inputs(epilogue.program) if i >= first]
    end = first + len(epilogue.operands)
    stored = {i: element_types.TYPES[op.inputs[epilogue.operands[i - first]]].stored for i in live if i < end}
    literals = {i: element_types.computed(epilogue.program.inputs[i]) for i in live if i >= end}

    def group(struct: str, name: str, *of: str) -> RegisterGroup:
        lies = ((i, kinds[i - first]) for i in live if kinds[i - first] in of)
        loads = (
            Load(
                f"in{i}",
                _LOADS[kind][0].format((stored | literals)[i]),
                _LOADS[kind][1].format(f"in{i}"),
                halves=kind in ("row", "inner"),
            )
            for i, kind in lies
        )
        return RegisterGroup(struct, name, tuple(loads), wide="row" not in of)

    rows, column = (
        group("RowHeld", "rows", "row", "inner", "uniform", "literal"),
        group("ColumnHeld", "column", "column"),
    )
    cell = group("CellHeld", "cell", "cell")
    arguments = "const Pointers& from, const Place& at"
    named = (
        parts.factors.sum.format(f"product[{i}]") if i < first else f"in{i}"
        for i in expressions.live_inputs(epilogue.program)
    )
    return "".join((
        access.pointers(
            (access.Pointer(f"const {of}", f"in{i}", f"in{i}") for i, of in stored.items()),
            (f"{of} in{i}" for i, of in literals.items()),
        ),
        _operands(work, stored, literals),
        rows.hold(),
        rows.load("load_rows", f"{arguments}, int down"),
        column.hold(),
        column.load("load_column", f"{arguments}, int right"),
        cell.hold(),
        # The staged operand is loaded by TMA.
        cell.load("load_cell", f"{arguments}, int down, int right", later=f"in{staged}"),
        # Of a cell: `half` selects one of the thread's two rows, `w` one of its adjacent columns.
        access.element(
            named, (rows, column, cell),
            "const float* product, const ColumnHeld<W>& column, const CellHeld<W>& cell, const RowHeld& rows, "
            "int half, int w",
        ),
    ))  # fmt: skip


def _operands(work: GemmSource, stored: dict[int, str], literals: Iterable[int]) -> str:
    """Return the struct of a launch's inputs, with accessors for the pointers and the numbers of each epilogue."""
    of_sibling = [
        ", ".join((
            *(f"(const {t}*)in{epilogue.operands[i - work.first_operand]}" for i, t in stored.items()),
            *(_number(epilogue, i - work.first_operand - len(epilogue.operands)) for i in literals),
        ))
        for epilogue in work.parts.epilogues
    ]  # fmt: skip
    choices = "".join(f"    if (sibling == {k}) return {{{p}}};\n" for k, p in list(enumerate(of_sibling))[1:])
    member = f"  DEVICE Pointers of(int sibling) const {{\n{choices}    return {{{of_sibling[0]}}};\n  }}\n"
    return operand_struct(work, member)


def operand_struct(work: GemmSource, member: str = "") -> str:
    """Return the type of right factors, and the struct of a launch's inputs with accessors for the factors."""
    pointers = "".join(f"  const void* in{i};\n" for i in range(len(work.op.inputs)))
    return (
        f"using RightFactor = {_right_type(work.parts.factors.stored, work.parts.packed)};\n"
        f"struct Operands {{\n{pointers}{member}{_factors(work)}}};\n"
    )


def _number(epilogue: Epilogue, index: int) -> str:
    parameters = epilogue.parameters
    return element_types.literal(parameters[index], epilogue.program.inputs[index - len(parameters)])


def _factors(work: GemmSource) -> str:
    """Return the members that expose the factors by their types."""
    products = work.parts.products
    stored = work.parts.factors.stored
    rights = [_right(stored, p, len(work.op.inputs)) for p in products]
    choices = "".join(f"    if (NUMBER == {k}) return {right};\n" for k, right in list(enumerate(rights))[1:])
    member = f"  DEVICE const {stored}* a() const {{ return (const {stored}*)in{products[0].a}; }}\n"
    return (
        "" if work.parts.prologue is not None else member
    ) + f"  template <int NUMBER> DEVICE RightFactor b() const {{\n{choices}    return {rights[0]};\n  }}\n"


def _right(stored: str, product: Product, inputs: int) -> str:
    """Return the right factor of a product, as a `RightFactor`; none where it is no input, which TMA alone reads."""
    packed = product.packed
    if product.b >= inputs:
        return "nullptr"
    if packed is None:
        return f"(const {stored}*)in{product.b}"
    zeros = "nullptr" if packed.zeros is None else f"in{packed.zeros}"
    return f"{{(const unsigned char*)in{product.b}, (const {stored}*)in{packed.scales}, {zeros}}}"


def _right_type(stored: str, packed: PackedWeight | None) -> str:
    """Return how kernels know a right factor: by a pointer to elements, or to numbers in few bits."""
    if packed is None:
        return f"const {stored}*"
    zeros = "MIDDLE" if packed.zeros is None else "PACKED" if packed.zeros_packed else "REAL"
    return f"PackedMatrix<{packed.packing.bits}, {packed.packing.block}, Zeros::{zeros}, {stored}>"


def results(work: GemmSource) -> str:
    """Return the outputs' pointers, and the store of adjacent elements of each."""
    stores = []
    for n, output in enumerate(work.program.outputs):
        stored, to = element_types.TYPES[output.dtype].stored, choice(work, n)
        stores.append(Store(f"value{n}", stored, f"b{n}", f"store_values<W>(({stored}*)({to}) + offset, value{n})"))
    offset = "stores.layouts[sibling].at(at.row, at.column)" if work.stored else _offset(work.op.slot)
    # W adjacent cells of a row.
    return result_pointers(work) + access.store(
        "store_results",
        "const Results& to, const Stores& stores, int sibling, const Place& at, const Result (&result)[W]",
        stores, "W", f"  const unsigned long long offset = {offset};\n",
    )  # fmt: skip


def choice(work: GemmSource, n: int) -> str:
    """Return the pointer of output `n` of the epilogue `sibling`."""
    first, *others = (f"to.out{epilogue.outputs[n]}" for epilogue in work.parts.epilogues)
    return "".join(f"sibling == {k} ? {out} : " for k, out in enumerate(others, 1)) + first


def result_pointers(work: GemmSource) -> str:
    """Return the struct of the pointers of the outputs and of the scratch memory."""
    fields = "".join(f"  void* out{n};\n" for n in range(len(work.op.outputs)))
    return f"struct Results {{\n{fields}  void* scratch;\n}};\n"


def _offset(slot: Slot | None) -> str:
    """Return the offset of a cell in an output."""
    if slot is None:
        return "(unsigned long long)at.row * at.pitch + at.column"
    return f"(unsigned long long)at.row * {slot.total} + {slot.first} + at.column"
