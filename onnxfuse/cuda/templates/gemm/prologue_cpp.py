"""Source generation of a product's prologue, which computes its left factor 16 bytes at a time."""

from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.emit.access import Load, RegisterGroup
from onnxfuse.codegen.program.program import Apply
from onnxfuse.cuda.isa.isa import SWIZZLED_BYTES
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.limits import ACCESS_BYTES
from onnxfuse.cuda.templates.gemm import costs
from onnxfuse.cuda.templates.gemm.body import JOINED, Anatomy, Prologue
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types

SHORT = frozenset({
    "add", "sub", "mul", "neg", "abs", "relu", "max", "min", "at_least", "at_most", "clip", "cast", "where", "pow_2",
})  # fmt: skip
"""Single-instruction operations; others count as several."""


def microseconds(parts: Anatomy, rows: int, arch: Arch) -> float:
    """Estimate the microseconds for a multiprocessor to compute so many rows and 128 bytes of terms of the left
    factor."""
    prologue = parts.prologue
    if prologue is None:
        return 0.0
    program = prologue.program
    ops = [v.op for i in program.live() if isinstance(v := program.values[i], Apply)]
    cost = costs.prologue(arch)
    each = sum(1 if op in SHORT else cost.long for op in ops)
    each += cost.around * (len(expressions.live_inputs(program)) + 1)
    return rows * parts.terms * each / cost.rate


def none() -> str:
    """Return the source if the left factor is an input of the op."""
    return """struct Prologue {};
template <class> DEVICE constexpr int beside_bytes() { return 0; }
DEVICE const Factor* left_of(const Operands& from, const Groups&, Index matrix, Index lines, Index pitch) {
  return from.a() + (unsigned long long)matrix * lines * pitch;
}
"""


def sm80(op: FusedOp, parts: Anatomy, prologue: Prologue, rows: int, along: int) -> str:
    """Return `Prologue` for the sm_80 kernel: blocks of `rows`, matrices with rows at multiples of `along` elements."""
    wide, fetches, takes, behind = _wide(parts), [], [], 0
    for i, stored, size in _cells(op, prologue):
        address, name = "a", _name(i)
        if i != prologue.in_place:
            address = f"beside + ({behind} + number * {wide * size})"
            behind += rows * (SWIZZLED_BYTES // ACCESS_BYTES) * wide * size
        start = "run(term).at(row)" if i == JOINED else f"{name} + ((unsigned long long)row * pitch + term)"
        fetches.append(f"    copy_neighbours<{wide}, {along}>({address}, {start}, left);\n")
        take = f"take_neighbours<{stored}, {wide}, {along}>({address}, {start}, left)"
        takes.append(Load(name, f"Pack<{stored}, {wide}>", take))
    return _struct(
        op, parts, prologue, along,
        f"  static constexpr int BESIDE_BYTES = {behind};  // of the stage: matrices that do not lie where A will\n"
        f"  DEVICE void fetch({_SHARE}) const {{\n{''.join(fetches)}  }}\n"
        + RegisterGroup("Cells", "cell", tuple(takes)).load("take", _SHARE, of=" const"),
    ) + (
        "template <class From> DEVICE constexpr int beside_bytes() { return From::BESIDE_BYTES; }\n"
        "DEVICE Prologue left_of(const Operands& from, const Groups& p, Index matrix, Index m, Index k) {\n"
        "  return {from, p, matrix * m, k};\n}\n"
    )  # fmt: skip


_SHARE = "SharedAddress a, SharedAddress beside, int number, Index row, Index term, Index pitch, int left"
"""The share of a thread, for matrices with rows of `pitch` terms."""


def sm90(op: FusedOp, parts: Anatomy, prologue: Prologue) -> str:
    """Return `Prologue` for Hopper's kernel, whose matrices TMA has loaded with the same swizzle."""
    takes = []
    for number, (i, _, _) in enumerate(_cells(op, prologue)):
        address = "a" if number == 0 else f"beside + {number - 1} * stride"
        takes.append(f"    load_shared(held.{_name(i)}.chunk[0], {address});\n")
    return _struct(
        op, parts, prologue, 16,
        "  static DEVICE Cells take(unsigned a, unsigned beside, unsigned stride) {\n    Cells held;\n"
        f"{''.join(takes)}    return held;\n  }}\n",
    )  # fmt: skip


def _wide(parts: Anatomy) -> int:
    return ACCESS_BYTES // parts.factors.bytes


def _cells(op: FusedOp, prologue: Prologue) -> list[tuple[int, str, int]]:
    """Return the matrices that the functor reads: the input of the op, the type of its elements and their size."""
    facts = zip(prologue.cells, (element_types.TYPES[t] for t in prologue.cell_types), strict=True)
    return [(i, fact.stored, fact.size) for i, fact in facts]


def _name(i: int) -> str:
    """Return the kernels' name of an input of the functor."""
    return "joined" if i == JOINED else f"in{i}"


def _runs(prologue: Prologue, stored: str) -> str:
    """Return the function that locates terms in concatenated matrices."""
    text, end = "", 0
    for i, terms in zip(prologue.joined, prologue.terms, strict=True):
        run = f"{{(const {stored}*)parts.in{i} + (term - {end}), {terms}}}"
        text += f"    if (term >= {end}) run = {run};\n" if end else f"    Run run = {run};\n"
        end += terms
    return (
        "  Operands parts;\n"
        "  // Where some terms lie in the first row, and elements from row to row.\n"
        f"  struct Run {{\n    const {stored}* from;\n    Index step;\n"
        f"    DEVICE const {stored}* at(Index row) const {{ return from + (unsigned long long)row * step; }}\n  }};\n"
        f"  DEVICE Run run(Index term) const {{\n{text}    return run;\n  }}\n"
    )


def _struct(op: FusedOp, parts: Anatomy, prologue: Prologue, along: int, cells: str) -> str:
    """Return `Prologue`: pointers to the inputs, how a thread loads its share, and the computation."""
    wide = _wide(parts)
    live = [(prologue.inputs[i], prologue.kinds[i]) for i in expressions.live_inputs(prologue.program)]
    stored = {i: element_types.TYPES[op.inputs[prologue.joined[0] if i == JOINED else i]].stored for i, _ in live}
    alone = [(i, kind) for i, kind in live if i != JOINED]
    first = {"cell": " + (unsigned long long)before * k", "row": " + before", "column": "", "uniform": "", "group": ""}
    initializers = [f"in{i}((const {stored[i]}*)from.in{i}{first[kind]})" for i, kind in alone]
    initializers += ["parts(from)"] if prologue.joined else []
    initializers += ["before(before)", "k(k)", "group(p.group)"] if prologue.group else []
    neighbours = f"load_neighbours<{wide}, {along}>"
    loads = {
        "cell": "", "column": f"{neighbours}(in{{}} + term, left)", "row": "load_splat(in{} + row)",
        "uniform": "load_splat(in{})",
        "group": f"{neighbours}(in{{}} + (unsigned long long)group.quotient(before + row) * k + term, left)",
    }  # fmt: skip

    def group(struct: str, name: str, *of: str) -> RegisterGroup:
        def load(i: int, kind: str) -> Load:
            holder = f"Splat<{stored[i]}>" if kind in ("row", "uniform") else f"Pack<{stored[i]}, {wide}>"
            return Load(_name(i), holder, loads[kind].format(i))

        return RegisterGroup(struct, name, tuple(load(i, kind) for i, kind in live if kind in of))

    cell, column = group("Cells", "cell", "cell"), group("Columns", "column", "column")
    row = group("Rows", "row", "row", "uniform", "group")
    values = cell.values() | column.values() | row.values()
    element = ", ".join(values[_name(i)] for i, _ in live)
    packed = {"f16": "packed_f16<W>", "bf16": "packed_bf16<W>"}.get(parts.factors.stored, "packed<Factor, W>")
    word = "round_to_tf32(pack.word(i))" if parts.to_tf32 else "pack.word(i)"
    return (
        f"namespace left_factor {{\n{expressions.source(prologue.program)}}}\nstruct Prologue {{\n"
        f"  static constexpr int W = {wide};  // terms that a thread computes at once\n"
        + "".join(f"  const {stored[i]}* in{i};\n" for i, _ in alone)
        + (_runs(prologue, stored[JOINED]) if prologue.joined else "")
        + ("  Index before, k;\n  Divisor<Index> group;\n" if prologue.group else "")
        + cell.hold()
        + column.hold()
        + row.hold()
        + "  DEVICE Prologue(const Operands& from, const Groups& p, Index before, Index k)\n"
        f"      : {', '.join(initializers)} {{}}\n"
        "  // Of the terms from `term` on, of which there are `left`.\n"
        + column.load("columns", "Index term, int left", of=" const")
        + row.load(
            "rows", "Index row, bool there, Index term, int left", after="    if (!there) return held;\n", of=" const"
        )
        + cells
        + "  // Beyond the end of a row are zeros, whatever the functor makes of nothing.\n"
        "  static DEVICE void compute(unsigned (&word)[4], const Cells& cell, const Columns& column, const Rows& row, "
        "int left) {\n    Stored<Factor>::Value value[W];\n    UNROLLED for (int w = 0; w < W; ++w)\n"
        f"      value[w] = w < left ? left_factor::apply({{{element}}}).b0 : 0.0f;\n"
        f"    const Pack<Factor, W> pack = {packed}(value);\n"
        f"    UNROLLED for (int i = 0; i < 4; ++i) word[i] = {word};\n  }}\n}};\n"
    )
