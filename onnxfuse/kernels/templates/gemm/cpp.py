"""The generated text of the gemm template's kernels: the body, its operands, how its results are put."""

from dataclasses import dataclass
from functools import cached_property

from onnxfuse.kernels.emit import expressions
from onnxfuse.kernels.emit.source import AMPERE, DEVICE, KernelSource, generated, identifier, template
from onnxfuse.kernels.ir import strides, types
from onnxfuse.kernels.ir.program import Program
from onnxfuse.kernels.ir.strides import Shape
from onnxfuse.kernels.launch_plan import Block, Tile
from onnxfuse.kernels.templates.gemm import prologue_cpp
from onnxfuse.kernels.templates.gemm.body import TYPES, Anatomy, Problem
from onnxfuse.kernels.templates.gemm.output_layout import Stored, stored
from onnxfuse.model.fused import FusedOp, Slot

_SWIZZLED = {
    2: "(puts + row * 128 + ((row & 7) << 4) + pair * 4) ^ group << 4",
    4: "((puts + row * 128 + ((pair / 2 ^ (row & 7)) << 4) + pair % 2 * 8) ^ group % 4 << 5) + group / 4 * 2048",
}
"""Where a thread's two elements lie in a chunk, by their size. A row is 128 bytes, its pieces of 16 bytes swizzled as
the copy engine has them; elements of 4 bytes take two such blocks of rows."""


@dataclass(frozen=True)
class Work:
    """All that the plans of the kernels are made from."""

    op: FusedOp
    parts: Anatomy
    size: Problem
    kinds: tuple[str, ...]
    output_shapes: tuple[Shape, ...]

    @property
    def entry(self) -> str:
        return identifier(self.op.name)

    @property
    def program(self) -> Program:
        return self.parts.epilogues[0].program

    @property
    def source(self) -> str:
        """What the left factor is, as the templates' files are named."""
        return "matrix" if self.size.places is None else "window"

    @property
    def first_operand(self) -> int:
        """Among the inputs of an epilogue, which are its products and then its operands."""
        return len(self.parts.epilogues[0].products)

    @cached_property
    def stored(self) -> tuple[Stored, ...]:
        """Of each epilogue, where its cells go; none where all outputs are written as the products lie."""
        if not any(epilogue.moves for epilogue in self.parts.epilogues):
            return ()
        return tuple(stored(self.size.full, epilogue.moves) for epilogue in self.parts.epilogues)

    @property
    def store_words(self) -> tuple[int, ...]:
        """The fields of the kernel's `Stores`."""
        return tuple(w for s in self.stored for w in s.words(16 // output_bytes(self.parts)))

    @property
    def group_words(self) -> tuple[int, ...]:
        """The fields of the kernel's `Groups`."""
        prologue = self.parts.prologue
        return () if prologue is None or not prologue.group else strides.divisor(prologue.group, 32)

    @cached_property
    def staged(self) -> int | None:
        """The input of an epilogue that the copy engine can fetch to where the output will be put."""
        operands, first, stored = self.parts.epilogues[0].operands, self.first_operand, output_bytes(self.parts)
        cells = (i for i in expressions.live_inputs(self.program) if i >= first and self.kinds[i - first] == "cell")
        sizes = ((i, types.TYPES[self.op.inputs[operands[i - first]]].size) for i in cells)
        return next((i for i, size in sizes if size == stored), None)


@dataclass(frozen=True)
class Fit:
    """How the kernel for sm_80 is cut for a problem."""

    block: Block
    stages: int
    """Of the ring in shared memory."""
    shared_bytes: int
    width: int
    """Neighbouring cells that a thread computes at a time."""
    a_piece: int
    b_piece: int
    """Bytes that a copy of a factor takes at a time: 2, 4, 8 or 16."""
    along: int
    """Elements on whose boundary each row of the left factor begins, and of what it is computed from; at most 16."""


def plain(work: Work, threads: int) -> KernelSource:
    """Return the kernel that takes any size and any pointers."""
    inputs = ", ".join(f"in{i}" for i in range(len(work.op.inputs)))
    outputs = ", ".join(f"out{n}" for n in range(len(work.op.outputs)))
    end = (
        f"KERNEL(THREADS) {work.entry}({_arguments(work.op)}, PARAMETERS p) {{\n  join_stream();\n"
        f"  gemm({{{inputs}}}, {{{outputs}}}, p);\n}}\n"
    )
    return _kernel(work, (), {"THREADS": threads}, None, _results(work), ("gemm/plain.cu",), end)


def sm80(work: Work, fit: Fit) -> KernelSource:
    """Return the kernel for the tensor cores of sm_80 and later."""
    inputs = ", ".join(f"in{i}" for i in range(len(work.op.inputs)))
    outputs = ", ".join(f"out{n}" for n in range(len(work.op.outputs)))
    block = fit.block
    end = (
        f"KERNEL(THREADS) {work.entry}({_arguments(work.op)}, PARAMETERS p) {{\n  join_stream();\n"
        f"  gemm({{{inputs}}}, {{{outputs}}}, p);\n}}\n"
    )
    constants = {
        "THREADS": block.threads, "TILE_M": block.m, "TILE_N": block.n, "WARPS_M": block.warps_m,
        "WARPS_N": block.warps_n, "WARPS_K": block.warps_k, "STAGES": fit.stages, "SHARED_BYTES": fit.shared_bytes,
        "WIDTH": fit.width, "A_PIECE": fit.a_piece, "B_PIECE": fit.b_piece,
    }  # fmt: skip
    products = work.parts.products
    places = work.size.places
    prologue = work.parts.prologue
    flags = {
        "A_TURNED": products[0].turned, "BATCHED": work.size.batch is not None, "WINDOW": places is not None,
        "PROLOGUE": prologue is not None, "STREAMED": streamed(block),
    }  # fmt: skip
    constants |= {"CHANNELS": places.shape[3] if places else 1, "WINDOW_WIDTH": places.kernel[1] if places else 1}
    middle = "".join(f"constexpr bool {name} = {str(value).lower()};\n" for name, value in flags.items())
    stored = types.TYPES[work.parts.dtype].stored
    choices = "".join(f"  if (number == {k}) return from.b<{k}>();\n" for k in range(1, len(products)))
    middle += (
        f"using Factor = {stored};\n"
        f"DEVICE const Factor* right_factor(const Operands& from, int number) {{\n{choices}  return from.b<0>();\n}}\n"
    )
    if prologue is None:
        middle += prologue_cpp.none()
    else:
        middle += prologue_cpp.sm80(work.op, work.parts, prologue, block.m, fit.along)
    ahead = () if prologue is None else ("conv/neighbours.cuh", "conv/neighbours_ahead.cuh")
    return _kernel(work, (AMPERE, *ahead), constants, None, middle + _results(work), ("gemm/sm80.cu",), end)


def streamed(block: Block) -> bool:
    """Return whether a warp loads its fragments of B as it needs them: beside so many accumulators they do not fit."""
    return block.m * block.n // (32 * block.warps_m * block.warps_n) > 128


def source_fields(size: Problem) -> tuple[int, ...]:
    """Return the fields of the kernels' `Source`."""
    places = size.places
    if places is None:
        return ()
    _, height, width, channels = places.shape
    return (
        height, width, channels, *places.out, *places.strides, *places.begin, *places.dilations, places.kernel[1],
    )  # fmt: skip


def sm90(work: Work, threads: int, tile: Tile, stages: int, left_rows: int) -> KernelSource:
    """Return the kernel for Hopper's tensor cores; of the left factor `left_rows` are fetched for a tile."""
    inputs = ", ".join(f"in{i}" for i in range(len(work.op.inputs)))
    outputs = ", ".join(f"out{n}" for n in range(len(work.op.outputs)))
    end = (
        f"CLUSTERED_KERNEL(THREADS, TOGETHER) {work.entry}({_arguments(work.op)}, TENSOR_MAPS maps, PARAMETERS p) {{\n"
        f"  gemm({{{inputs}}}, {{{outputs}}}, maps, p);\n}}\n"
    )
    constants = {
        "THREADS": threads, "TILE_M": tile.m, "TILE_N": tile.n, "TILE_K": work.parts.terms, "CLUSTER": tile.cluster,
        "WARPGROUPS": tile.warpgroups, "TEAMS": tile.teams, "SPLIT": tile.split, "TOGETHER": tile.cluster * tile.split,
        "LEFT_ROWS": left_rows,
        "PART_WARPS": part_warps(tile, left_rows),
        "EVERY_BLOCK": (1 << tile.cluster) - 1, "STAGES": stages, "OUTPUT_BYTES": output_bytes(work.parts),
        "STAGED": int(work.staged is not None), "BESIDE": _beside(work),
    }  # fmt: skip
    middle = (
        _pointers(work)
        + _maps_struct(work)
        + _prefetch_maps(work)
        + _take_staged(work)
        + _put_results(work.program)
        + ("" if work.stored else _put_chunk(work.program))
        + _put_moved(work)
    )
    middle += _warpgroup_product(
        work.first_operand * tile.n, TYPES[work.parts.dtype], right_rows=not work.parts.products[0].transposed
    )
    prologue = work.parts.prologue
    middle += f"constexpr bool PROLOGUE = {str(prologue is not None).lower()};\n" + _fetch_beside(_beside(work))
    middle += f"using Factor = {types.TYPES[work.parts.dtype].stored};\n"
    middle += "struct GivenFactor {\n  DEVICE GivenFactor(const Operands&, const Groups&, Index, Index) {}\n};\n"
    if prologue is None:
        middle += "using Prologue = GivenFactor;\n"
    else:
        middle += prologue_cpp.sm90(work.op, work.parts, prologue)
    before = ("cuda/sm90.cuh",) if prologue is None else ("cuda/sm90.cuh", "conv/neighbours.cuh")
    files = (f"gemm/fetch_{work.source}.cuh", *(("gemm/put_moved.cuh",) if work.stored else ()), "gemm/sm90.cu")
    return _kernel(work, before, constants, work.staged, middle, files, end)


def part_warps(tile: Tile, left_rows: int) -> int:
    """Return the warps that have rows of the left factor: those whose sums are sent."""
    return min(4 * tile.warpgroups, -(-left_rows // 16))


def _beside(work: Work) -> int:
    """Return the matrices that the copy engine fetches for the left factor beside the one in its place."""
    return 0 if work.parts.prologue is None else len(work.parts.prologue.cells) - 1


def _fetch_beside(count: int) -> str:
    lines = "".join(f"  terms.fetch_left(to + {i} * stride, &maps.beside[{i}], arrived);\n" for i in range(count))
    return (
        "template <class Terms> DEVICE void fetch_beside(const TensorMaps& maps, const Terms& terms, unsigned to, "
        f"unsigned stride, unsigned arrived) {{\n{lines}}}\n"
    )


def output_bytes(parts: Anatomy) -> int:
    """Return the bytes that one cell of an epilogue's outputs takes."""
    return sum(types.TYPES[o.dtype].size for o in parts.epilogues[0].program.outputs)


def _kernel(
    work: Work,
    before: tuple[str, ...],
    constants: dict[str, int],
    staged: int | None,
    middle: str,
    after: tuple[str, ...],
    end: str,
) -> KernelSource:
    """Return the kernel: the constants, the body, its operands, then the template and the entry point."""
    facts = {**constants, "ACCUMULATED": work.first_operand, "LANES": len(work.parts.epilogues)}
    text = "".join(f"constexpr int {name} = {value};\n" for name, value in facts.items())
    text += f"constexpr bool B_TRANSPOSED = {str(work.parts.products[0].transposed).lower()};\n"
    text += f"constexpr bool MOVED = {str(bool(work.stored)).lower()};\n"
    text += f"struct Stores {{{' Layout layouts[LANES]; ' if work.stored else ''}}};\n"
    text += f"struct Groups {{{' Divisor<Index> group; ' if work.group_words else ''}}};\n"
    text += expressions.source(work.program) + _operands(work, staged) + middle
    moved = ("gemm/stored.cuh",) if work.stored else ()
    files = (DEVICE, "cuda/math.cuh", "cuda/memory.cuh", "gemm/gemm.cuh", f"gemm/{work.source}.cuh", *moved, *before)
    head, *rest = (template(f) for f in files)
    return KernelSource(
        work.entry,
        (
            head,
            generated(work.entry, "using Index = unsigned;\n"),
            *rest,
            generated(work.entry, text),
            *(template(f) for f in after),
            generated(work.entry, end),
        ),
    )


def _operands(work: Work, staged: int | None) -> str:
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


def _maps_struct(work: Work) -> str:
    parts = work.parts
    puts = () if work.stored else range(len(parts.epilogues[0].outputs))
    lanes = "".join(f"  TensorMap out{n}[{len(parts.epilogues)}];\n" for n in puts)
    if work.staged is not None:
        lanes += f"  TensorMap staged[{len(parts.epilogues)}];\n"
    beside = f"  TensorMap beside[{_beside(work)}];\n" if _beside(work) else ""
    return f"struct TensorMaps {{\n  TensorMap a;\n{beside}  TensorMap b[{len(parts.products)}];\n{lanes}}};\n"


def _prefetch_maps(work: Work) -> str:
    """Return how the copy engine is told beforehand which maps it will need: it fetches them while a launch begins."""
    parts = work.parts
    maps = ["a", *(f"beside[{k}]" for k in range(_beside(work))), *(f"b[{k}]" for k in range(len(parts.products)))]
    puts = () if work.stored else range(len(parts.epilogues[0].outputs))
    maps += [f"out{n}[{k}]" for n in puts for k in range(len(parts.epilogues))]
    maps += [f"staged[{k}]" for k in range(len(parts.epilogues))] if work.staged is not None else []
    lines = "".join(f"  prefetch_map(&maps.{m});\n" for m in maps)
    return f"DEVICE void prefetch_maps(const TensorMaps& maps) {{\n{lines}}}\n"


def _take_staged(work: Work) -> str:
    """Return how the staged operand is fetched, and how a thread takes its share: at the places of the first output."""
    fetch, take = "", ""
    if work.staged is not None:
        size = output_bytes(work.parts)
        fetch = "".join(
            f"  fetch_box<false>(to + {part * 2048}, &maps.staged[lane], column + {part * 32}, row, arrived, 0);\n"
            for part in range(size // 2)
        )
        take = f"  const unsigned from = {_SWIZZLED[size]};\n" + "".join(
            f"  held.in{work.staged}.word({w}) = load_shared(from + half * 1024 + {w * 4});\n" for w in range(size // 2)
        )
    return (
        "DEVICE void fetch_staged(const TensorMaps& maps, int lane, Index column, Index row, unsigned to, "
        f"unsigned arrived) {{\n{fetch}}}\n"
        "DEVICE void take_staged(CellHeld<2>& held, unsigned puts, int row, int half, int group, int pair) {\n"
        f"{take}}}\n"
    )


def _results(work: Work) -> str:
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
        _pointers(work) + "// W neighbouring cells of a row.\n"
        "template <int W>\n"
        "DEVICE void store_results(const Results& to, const Stores& stores, int lane, const Place& at, "
        "const Result (&result)[W]) {\n"
        f"  const unsigned long long offset = {offset};\n" + "".join(stores) + "}\n"
    )


def _pointers(work: Work) -> str:
    fields = "".join(f"  void* out{n};\n" for n in range(len(work.op.outputs)))
    return f"struct Results {{\n{fields}}};\n"


def _offset(slot: Slot | None) -> str:
    """Return where a cell of an output lies."""
    if slot is None:
        return "(unsigned long long)at.row * at.n + at.column"
    return f"(unsigned long long)at.row * {slot.total} + {slot.first} + at.column"


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


def _put_results(program: Program) -> str:
    """Return how a thread puts its results into shared memory, from where the copy engine takes them."""
    lines, offset = [], 0
    for n, output in enumerate(program.outputs):
        stored, size = types.TYPES[output.dtype].stored, types.TYPES[output.dtype].size
        lines.append(f"  const Stored<{stored}>::Value value{n}[2] = {{result[0].b{n}, result[1].b{n}}};")
        lines.append(f"  const unsigned to{n} = {_SWIZZLED[size]};")
        if size == 2:
            packer = {"f16": "packed_f16<2>", "bf16": "packed_bf16<2>"}.get(stored, f"packed<{stored}, 2>")
            lines.append(f"  store_shared(to{n} + half * 1024 + {offset}, {packer}(value{n}).word(0));")
        else:
            lines.append("  UNROLLED for (int w = 0; w < 2; ++w)")
            lines.append(
                f"    store_shared(to{n} + half * 1024 + {offset} + w * 4, packed<{stored}, 2>(value{n}).word(w));"
            )
        offset += 16 * 64 * size
    head = "// Two neighbours, in a row of the chunk or the one eight below, in a group of eight columns at a pair.\n"
    return (
        head
        + "DEVICE void put_results(unsigned puts, const Result (&result)[2], int row, int half, int group, "
        + "int pair) {\n"
        + "\n".join(lines)
        + "\n}\n"
    )


def _put_chunk(program: Program) -> str:
    lines, offset = [], 0
    for n, output in enumerate(program.outputs):
        size = types.TYPES[output.dtype].size
        for part in range(size // 2):
            lines.append(f"  put_box(&maps.out{n}[lane], column + {part * 32}, row, puts + {offset + part * 2048});\n")
        offset += 16 * 64 * size
    return (
        "DEVICE void put_chunk(const TensorMaps& maps, int lane, Index column, Index row, unsigned puts) {\n"
        + "".join(lines)
        + "}\n"
    )


def _put_moved(work: Work) -> str:
    """Return how a chunk is put: nothing for the copy engine where outputs are transposed, else nothing for threads."""
    put = "Index column, Index row, unsigned puts"
    if not work.stored:
        moved = put.replace(" row,", " row, Index m, Index n,")
        return f"DEVICE void put_moved(const Results&, const Stores&, int lane, {moved}) {{}}\n"
    epilogues = work.parts.epilogues
    word = f"Raw<{types.TYPES[work.program.outputs[0].dtype].size}>::Word"
    choices = "".join(f"lane == {k} ? to.out{epilogue.outputs[0]} : " for k, epilogue in list(enumerate(epilogues))[1:])
    return (
        f"DEVICE void put_chunk(const TensorMaps&, int lane, {put}) {{}}\n"
        f"using Word = {word};\n"
        "DEVICE Word* output_of(const Results& to, int lane) {\n"
        f"  return (Word*)({choices}to.out{epilogues[0].outputs[0]});\n}}\n"
    )


def _warpgroup_product(n: int, dtype: str, right_rows: bool) -> str:
    """Return the function around one `wgmma` instruction: 64 x n x 32 bytes; `right_rows`: B lies [k, n]."""
    count = n // 2
    terms, ways = ("8", "") if dtype == "tf32" else ("16", f", 0, {int(right_rows)}")
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return (
        f"DEVICE void warpgroup_product(float (&d)[{count}], unsigned long long a, unsigned long long b, int add) {{\n"
        f'  asm volatile("{{\\n\\t.reg .pred add;\\n\\tsetp.ne.b32 add, %{count + 2}, 0;\\n\\t"\n'
        f'      "wgmma.mma_async.sync.aligned.m64n{n}k{terms}.f32.{dtype}.{dtype} {{{registers}}}, '
        f'%{count}, %{count + 1}, add, 1, 1{ways};\\n\\t}}"\n'
        f'      : {outputs}\n      : "l"(a), "l"(b), "r"(add));\n}}\n'
    )


def _arguments(op: FusedOp) -> str:
    arguments = [f"const void* in{i}" for i in range(len(op.inputs))]
    return ", ".join(arguments + [f"void* out{n}" for n in range(len(op.outputs))])
