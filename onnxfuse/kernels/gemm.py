"""Launch plans of the gemm template: matrix products with everything pointwise after them in one kernel."""

from dataclasses import dataclass

from onnxfuse.kernels import functor, plans, types
from onnxfuse.kernels.anatomy import TYPES, Anatomy, Problem, anatomy, operand_kind, output_shapes, problem
from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.body import Apply, Program
from onnxfuse.kernels.family import Extents, Family
from onnxfuse.kernels.layout import Shape
from onnxfuse.kernels.plans import LaunchPlan, TensorMap, Tile, Tuning
from onnxfuse.kernels.source import DEVICE, KernelSource, generated, identifier, template
from onnxfuse.kernels.types import UnsupportedError
from onnxfuse.model.fused import FusedOp

ARCH = "sm_90a"
"""The architecture that the fast kernel is written for: Hopper, with its warpgroup products and bulk copies."""
TILE_K = 64
SHARED_LIMIT = 227 * 1024
"""Shared memory of a block on Hopper, bytes."""

# ---- the plans


def plan(op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, tuning: Tuning) -> LaunchPlan:
    """Return how to run `op` on inputs of these shapes: on the tensor cores where they take its sizes and pointers."""
    parts = anatomy(op)
    outputs = output_shapes(op, input_shapes)
    size = problem(parts, input_shapes)
    kinds = _kinds(parts, size, input_shapes)
    work = _Work(op, parts, size, kinds, outputs)
    if not aligned or not tensor_cores(size.n, size.k, arch):
        return _plain(work)
    return _sm90(work, tuning.tile or choose(parts, size, arch), arch)


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the body of `op` is the better choice on `arch`, None where the kernel is."""
    return None if arch.name == ARCH else f"the product's kernel is made for {ARCH}, this GPU is {arch.name}"


def reads(shape: Extents, full: Extents) -> str | None:
    """Return why the kernel does not read an operand of `shape` beside a product of shape `full`, else None."""
    kind = operand_kind(shape, full)
    if kind == "cell":
        # 4096x3072x768 with bias and residual: 48.8 us in one kernel, 44 us in two (float16, H200, 2026-11).
        return "is as big as the product: a kernel of its own reads it faster"
    return None if kind else "lies across the rows and columns of the product"


def tensor_cores(n: int, k: int, arch: Arch) -> bool:
    """Return whether the fast kernel runs products with this many columns and terms on `arch`."""
    return arch.name == ARCH and n % 8 == 0 and k % 8 == 0 and k > 0


@dataclass(frozen=True)
class _Work:
    """All that the plans of both kernels are made from."""

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
        return self.parts.lanes[0].program

    def kernel(self, constants: dict[str, int], middle: str, files: tuple[str, ...], end: str) -> KernelSource:
        """Return the kernel: the constants, the body, its operands, then the template and the entry point."""
        facts = {**constants, "ACCUMULATED": len(self.parts.lanes[0].products), "LANES": len(self.parts.lanes)}
        text = "".join(f"constexpr int {name} = {value};\n" for name, value in facts.items())
        text += f"constexpr bool B_TRANSPOSED = {str(self.parts.products[0].transposed).lower()};\n"
        text += functor.source(self.program) + _operands(self) + middle
        head = (template(DEVICE), generated(self.entry, "using Index = unsigned;\n"))
        return KernelSource(
            self.entry,
            (
                *head,
                *(template(f) for f in ("math.cuh", "memory.cuh", "gemm.cuh", *files[:-1])),
                generated(self.entry, text),
                template(files[-1]),
                generated(self.entry, end),
            ),
        )


PLAIN_THREADS = 256


def _plain(work: _Work) -> LaunchPlan:
    size = work.size
    return LaunchPlan(
        kernel=work.kernel({"THREADS": PLAIN_THREADS}, _plain_results(work), ("gemm_plain.cu",), _plain_entry(work)),
        grid=(-(-size.m * size.n // PLAIN_THREADS), 1, 1),
        block=(PLAIN_THREADS, 1, 1),
        shared_bytes=0,
        parameters=plans.packed((size.m, size.n, size.k), 32),
        output_shapes=work.output_shapes,
    )


def _sm90(work: _Work, tile: Tile, arch: Arch) -> LaunchPlan:
    size, parts = work.size, work.parts
    stages = _stages(parts, tile)
    constants = {
        "THREADS": 384, "TILE_M": tile.m, "TILE_N": tile.n, "CLUSTER": tile.cluster, "STAGES": stages,
        "OUTPUT_BYTES": _output_bytes(parts),
    }  # fmt: skip
    dtype = work.op.inputs[parts.products[0].a]
    middle = _maps_struct(parts) + _put_results(work.program) + _put_chunk(work.program)
    middle += _warpgroup_product(tile.n, TYPES[dtype], right_rows=not parts.products[0].transposed)
    rows, columns = -(-size.m // (tile.m * tile.cluster)), -(-size.n // tile.n)
    clusters = min(rows * columns * len(parts.lanes), arch.sm_count // tile.cluster)
    return LaunchPlan(
        kernel=work.kernel(constants, middle, ("hopper.cuh", "gemm_sm90.cu"), _sm90_entry(work)),
        grid=(clusters * tile.cluster, 1, 1),
        block=(384, 1, 1),
        shared_bytes=_shared_bytes(parts, tile, stages),
        parameters=plans.packed((size.m, size.n, -(-size.k // TILE_K), rows, columns), 32),
        output_shapes=work.output_shapes,
        tensor_maps=_maps(work.op, parts, size, tile),
    )


STEP = {
    (64, 64): (0.13, 0.19), (64, 128): (0.17, 0.26), (128, 64): (0.19, 0.29), (128, 128): (0.29, 0.40),
    (128, 192): (0.56, 0.66),
}  # fmt: skip
"""Microseconds of a multiprocessor for 64 terms of a tile: where it takes one tile, and where it takes several.

By rows and columns, all products of a gate together. float16, H200, 2026-11: 128x768x3072, 4096x768x3072 (one tile);
512x5632x2048, 4096x2304x768, 4096x4096x4096 (several).
"""
LIGHT = frozenset({"add", "sub", "mul", "neg", "relu", "max", "min", "at_least", "at_most", "clip"})
"""Operations beside which the widest tile's 192 accumulators fit the registers: with bias 4096x768x3072 takes 29.4 us,
35.7 with 128 columns; with GELU it spills, 4096x3072x768 takes 42.3 us, 36.8 with 128 columns."""
FINISH = 1.5
"""Microseconds of a body that is not light, GELU, over the accumulators of a tile of 128 by 128."""
LAUNCH = 2.4
"""Microseconds before the first product and after the last one."""
SHARED_FROM = 4
"""Tiles for each multiprocessor from which sharing a factor between two blocks pays: 4096x4096x4096 (eight) 214 us, 247
without; 6304x768x768 (three) 15.8 and 15.1."""


def choose(parts: Anatomy, size: Problem, arch: Arch) -> Tile:
    """Return the tile with the least estimated time."""
    accumulated = len(parts.lanes[0].products)
    steps = -(-size.k // TILE_K)

    def rounds(shape: tuple[int, int]) -> int:
        across = -(-size.n * accumulated // shape[1]) * len(parts.lanes)
        return -(-(-(-size.m // shape[0]) * across) // arch.sm_count)

    program = parts.lanes[0].program
    light = all(v.op in LIGHT for i in program.live() if isinstance(v := program.values[i], Apply))

    def microseconds(shape: tuple[int, int]) -> float:
        alone, among_others = STEP[shape]
        count = rounds(shape)
        finish = 0.0 if light else FINISH * shape[0] * shape[1] / (128 * 128)
        return LAUNCH + steps * (alone if count <= 1 else count * among_others) + count * finish

    widest = 192 if light and accumulated == 1 else 128
    fitting = [s for s in STEP if s[1] <= widest and s[1] % (64 * accumulated) == 0]
    if not fitting:
        raise UnsupportedError(f"{accumulated} products in one body")
    m, n = min(fitting, key=microseconds)
    return Tile(m, n // accumulated, 2 if (m, n) == (128, 128) and rounds((m, n)) >= SHARED_FROM else 1)


def _kind(shape: Shape, full: Shape) -> str:
    kind = operand_kind(shape, full)
    if kind is None:
        raise UnsupportedError(f"an operand of shape {list(shape)} beside a product of shape {list(full)}")
    return kind


def _kinds(parts: Anatomy, size: Problem, input_shapes: tuple[Shape, ...]) -> tuple[str, ...]:
    """Return how each operand of a lane lies in the output; the lanes agree."""
    found = {tuple(_kind(input_shapes[i], size.full) for i in lane.operands) for lane in parts.lanes}
    if len(found) > 1:
        raise UnsupportedError("products side by side with operands of different shapes")
    return found.pop()


def _output_bytes(parts: Anatomy) -> int:
    return sum(types.TYPES[o.dtype].size for o in parts.lanes[0].program.outputs)


def _shared_bytes(parts: Anatomy, tile: Tile, stages: int) -> int:
    ring = stages * (tile.m + len(parts.lanes[0].products) * tile.n) * TILE_K * 2
    puts = 8 * 2 * 16 * 64 * _output_bytes(parts)
    return 1024 + ring + puts + 2 * 8 * stages


def _stages(parts: Anatomy, tile: Tile) -> int:
    """Return how many stages of the ring fit; raises where it is not two."""
    stages = max((s for s in range(1, 9) if _shared_bytes(parts, tile, s) <= SHARED_LIMIT), default=0)
    if stages < 2:
        raise UnsupportedError(f"a tile of {tile.m} by {tile.n} does not fit the shared memory")
    return stages


# ---- generated text


def _operands(work: _Work) -> str:
    """Return the C++ types that hold the operands, and how they are loaded."""
    op, parts, kinds = work.op, work.parts, work.kinds
    lane = parts.lanes[0]
    first = len(lane.products)
    stored = [types.TYPES[op.inputs[i]].stored for i in lane.operands]
    live = [i for i in functor.live_inputs(lane.program) if i >= first]
    used = {f"in{i}": (kinds[i - first], stored[i - first]) for i in live}
    of_lane = [
        ", ".join(f"(const {stored[i - first]}*)in{lane.operands[i - first]}" for i in live) for lane in parts.lanes
    ]
    choices = "".join(f"    if (lane == {k}) return {{{p}}};\n" for k, p in list(enumerate(of_lane))[1:])
    pointers = "".join(f"  const void* in{i};\n" for i in range(len(op.inputs)))
    return (
        "struct Pointers {\n" + "".join(f"  const {t}* {n};\n" for n, (_, t) in used.items()) + "};\n"
        f"struct Operands {{\n{pointers}  DEVICE Pointers of(int lane) const {{\n{choices}"
        f"    return {{{of_lane[0]}}};\n  }}\n{_factors(work)}}};\n"
        + _held("RowHeld", "load_rows", used, ("row", "uniform"))
        + _held("ColumnHeld", "load_column", used, ("column",))
        + _held("CellHeld", "load_cell", used, ("cell",))
        + _element(first, lane.program, kinds)
    )


def _factors(work: _Work) -> str:
    """Return the members that give the plain kernel the factors by their types."""
    products = work.parts.products
    stored = types.TYPES[work.op.inputs[products[0].a]].stored
    choices = "".join(
        f"    if (NUMBER == {k}) return (const {stored}*)in{p.b};\n" for k, p in list(enumerate(products))[1:]
    )
    return (
        f"  DEVICE const {stored}* a() const {{ return (const {stored}*)in{products[0].a}; }}\n"
        f"  template <int NUMBER> DEVICE const {stored}* b() const {{\n{choices}"
        f"    return (const {stored}*)in{products[0].b};\n  }}\n"
    )


def _maps_struct(parts: Anatomy) -> str:
    outputs = "".join(f"  TensorMap out{n}[{len(parts.lanes)}];\n" for n in range(len(parts.lanes[0].outputs)))
    return f"struct TensorMaps {{\n  TensorMap a, b[{len(parts.products)}];\n{outputs}}};\n"


def _plain_results(work: _Work) -> str:
    """Return the outputs' pointers and how one element of each is stored."""
    lanes = work.parts.lanes
    fields = "".join(f"  void* out{n};\n" for n in range(len(work.op.outputs)))
    stores = []
    for n, output in enumerate(work.program.outputs):
        stored = types.TYPES[output.dtype].stored
        choices = "".join(f"lane == {k} ? to.out{lane.outputs[n]} : " for k, lane in list(enumerate(lanes))[1:])
        stores.append(
            f"  const Stored<{stored}>::Value value{n}[1] = {{result.b{n}}};\n"
            f"  store_values<1>(({stored}*)({choices}to.out{lanes[0].outputs[n]}) + offset, value{n});\n"
        )
    return (
        f"struct Results {{\n{fields}}};\n"
        "DEVICE void store_result(const Results& to, int lane, const Place& at, const Result& result) {\n"
        "  const unsigned long long offset = (unsigned long long)at.row * at.n + at.column;\n" + "".join(stores) + "}\n"
    )


def _held(name: str, function: str, used: dict[str, tuple[str, str]], kinds: tuple[str, ...]) -> str:
    """Return a struct with the operands of these kinds, and the function that loads it."""
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
        + "".join(f"  {load[kind].format(n)}\n" for n, (kind, _) in mine.items())
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

    values = ", ".join(value(i) for i in functor.live_inputs(program))
    return (
        "template <int W>\nDEVICE Element element(const float* product, const ColumnHeld<W>& column, "
        f"const CellHeld<W>& cell, const RowHeld& rows, int half, int next) {{\n  return {{{values}}};\n}}\n"
    )


def _put_results(program: Program) -> str:
    """A chunk's row is 128 bytes in shared memory, its 16-byte pieces swizzled as the copy engine reads them."""
    lines, offset = [], 0
    for n, output in enumerate(program.outputs):
        stored, size = types.TYPES[output.dtype].stored, types.TYPES[output.dtype].size
        lines.append(f"  const Stored<{stored}>::Value value{n}[2] = {{result[0].b{n}, result[1].b{n}}};")
        if size == 2:
            packer = {"f16": "packed_f16<2>", "bf16": "packed_bf16<2>"}.get(stored, f"packed<{stored}, 2>")
            lines.append(f"  const unsigned to{n} = (puts + row * 128 + ((row & 7) << 4) + pair * 4) ^ group << 4;")
            lines.append(f"  store_shared(to{n} + half * 1024 + {offset}, {packer}(value{n}).word(0));")
        else:
            lines.append(
                f"  const unsigned to{n} = (puts + row * 128 + ((pair / 2 ^ (row & 7)) << 4) + pair % 2 * 8) ^ "
                "group % 4 << 5;"
            )
            lines.append("  UNROLLED for (int w = 0; w < 2; ++w)")
            lines.append(
                f"    store_shared(to{n} + group / 4 * 2048 + half * 1024 + {offset} + w * 4, "
                f"packed<{stored}, 2>(value{n}).word(w));"
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


def _warpgroup_product(n: int, dtype: str, right_rows: bool) -> str:
    """Return the function around one `wgmma` instruction: 64 x n x 16; `right_rows`: B lies [k, n]."""
    count = n // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return (
        f"DEVICE void warpgroup_product(float (&d)[{count}], unsigned long long a, unsigned long long b, int add) {{\n"
        f'  asm volatile("{{\\n\\t.reg .pred add;\\n\\tsetp.ne.b32 add, %{count + 2}, 0;\\n\\t"\n'
        f'      "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype}.{dtype} {{{registers}}}, '
        f'%{count}, %{count + 1}, add, 1, 1, 0, {int(right_rows)};\\n\\t}}"\n'
        f'      : {outputs}\n      : "l"(a), "l"(b), "r"(add));\n}}\n'
    )


def _arguments(op: FusedOp) -> str:
    arguments = [f"const void* in{i}" for i in range(len(op.inputs))]
    return ", ".join(arguments + [f"void* out{n}" for n in range(len(op.outputs))])


def _sm90_entry(work: _Work) -> str:
    inputs = ", ".join(f"in{i}" for i in range(len(work.op.inputs)))
    return (
        f"CLUSTERED_KERNEL(THREADS, CLUSTER) {work.entry}({_arguments(work.op)}, TENSOR_MAPS maps, PARAMETERS p) {{\n"
        f"  gemm({{{inputs}}}, maps, p);\n}}\n"
    )


def _plain_entry(work: _Work) -> str:
    inputs = ", ".join(f"in{i}" for i in range(len(work.op.inputs)))
    outputs = ", ".join(f"out{n}" for n in range(len(work.op.outputs)))
    return (
        f"KERNEL(THREADS) {work.entry}({_arguments(work.op)}, PARAMETERS p) {{\n"
        f"  gemm({{{inputs}}}, {{{outputs}}}, p);\n}}\n"
    )


# ---- what the copy engine is told


def _maps(op: FusedOp, parts: Anatomy, size: Problem, tile: Tile) -> tuple[TensorMap, ...]:
    """Return the maps in the order of `TensorMaps`."""
    dtype = op.inputs[parts.products[0].a]
    maps = [_map(parts.products[0].a, dtype, size.m, size.k, (TILE_K, tile.m))]
    for product in parts.products:
        if product.transposed:
            maps.append(_map(product.b, dtype, size.n, size.k, (TILE_K, tile.n // tile.cluster)))
        else:
            maps.append(_map(product.b, dtype, size.k, size.n, (64, TILE_K // tile.cluster)))
    for n, output in enumerate(parts.lanes[0].program.outputs):
        columns = 128 // types.TYPES[output.dtype].size
        for lane in parts.lanes:
            maps.append(_map(len(op.inputs) + lane.outputs[n], output.dtype, size.m, size.n, (columns, 16)))
    return tuple(maps)


def _map(pointer: int, dtype: int, rows: int, columns: int, box: tuple[int, int]) -> TensorMap:
    return TensorMap(pointer, dtype, (columns, rows), (columns * types.TYPES[dtype].size,), box)


FAMILY = Family(anatomy, output_shapes, plan, refuses, reads)
