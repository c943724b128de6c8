"""Source generation of the Hopper kernel: tensor maps, products, and stores of result chunks."""

from dataclasses import dataclass

from onnxfuse.codegen.emit import entry as entries
from onnxfuse.codegen.emit.source import AMPERE, CLUSTER, HOPPER, WARP_SPECIALIZED, KernelSource
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.cuda.isa import wgmma
from onnxfuse.cuda.isa.isa import WARPGROUP
from onnxfuse.cuda.planning import limits
from onnxfuse.cuda.planning.limits import ACCESS_BYTES
from onnxfuse.cuda.templates.gemm import costs, prologue_cpp
from onnxfuse.cuda.templates.gemm.body import Anatomy
from onnxfuse.cuda.templates.gemm.cpp import brought, kernel, pointers, right_factors
from onnxfuse.cuda.templates.gemm.epilogue_cpp import choice, result_pointers
from onnxfuse.cuda.templates.gemm.problem import GemmProblem
from onnxfuse.cuda.templates.gemm.variant import GemmTile
from onnxfuse.cuda.templates.gemm.work import GemmSource, chunk_bytes
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.branching import larger, settled, smaller

_SWIZZLED = {
    1: "((buffer + row * 128 + ((row & 7) << 4) + pair * 2) ^ group / 2 << 4) + group % 2 * 8",
    2: "(buffer + row * 128 + ((row & 7) << 4) + pair * 4) ^ group << 4",
    4: "((buffer + row * 128 + ((pair / 2 ^ (row & 7)) << 4) + pair % 2 * 8) ^ group % 4 << 5) + group / 4 * 2048",
}
"""Location of a thread's two elements in a chunk, by element size. A row is 128 bytes, its 16-byte pieces swizzled as
by TMA; elements of 4 bytes occupy two such blocks of rows, those of one byte the first half of each."""


def sm90(work: GemmSource, threads: int, tile: GemmTile, stages: int, left_rows: int, *, long: bool) -> KernelSource:
    """Return the kernel for Hopper's tensor cores; `left_rows` of the left factor are loaded per tile, in rings of
    `stages`.

    A `long` one triggers its dependent launch late.
    """
    extremes = work.extremes_of is not None
    width, factors = work.first_operand * tile.n, work.parts.factors
    part = part_sums(work.parts, tile, width)
    arguments, more = ("scratch", "void* scratch, ") if extremes else ("nullptr", "")
    end = entries.kernel(
        work.entry, len(work.op.inputs), len(work.op.outputs), f"  gemm({pointers(work.op, arguments)}, maps, p);\n",
        bounds="CLUSTERED_KERNEL(THREADS, TOGETHER)", more=f"{more}TENSOR_MAPS maps",
    )  # fmt: skip
    constants = {
        "THREADS": threads, "TILE_M": tile.m, "TILE_N": tile.n, "TILE_K": work.parts.terms, "CLUSTER": tile.cluster,
        "WARPGROUPS": tile.warpgroups, "TEAMS": tile.teams, "SPLIT": tile.split, "TOGETHER": tile.cluster * tile.split,
        "LEFT_ROWS": left_rows, "SLICES": slices(work.size, work.parts.terms),
        "FETCHED_SLICES": fetched_slices(work), "LAST_SLICES": _last_slices(work.size, work.parts.terms),
        "PART_WARPS": part_warps(tile, left_rows),
        "EVERY_BLOCK": (1 << tile.cluster) - 1, "STAGES": stages, "RINGS": rings(work.parts, tile),
        "OUTPUT_BYTES": sum(chunk_bytes(o.dtype) for o in work.program.outputs),
        "STAGED": int(work.staged is not None), "STAGED_BYTES": 16 * 64 * work.staged_bytes, "BESIDE": _extra(work),
        "FETCHED_LEFT": len(_left_maps(work)), "PIECE_BYTES": piece_bytes(work),
        "PROLOGUE": computers(work.parts) > 0, "COMPUTERS": computers(work.parts), "LONG": long,
        "PRECISE": work.parts.precise, "FEW": smaller(FEW, work.first_operand * tile.n), "EXTREMES": extremes,
        "BROUGHT": _brought(work),
        "WHOLE_COLUMNS": work.parts.products[0].transposed and all(n >= tile.n for n in work.size.widths),
        **({} if part is None else {"PART": part.columns, "SETS": part.sets}),
    }  # fmt: skip
    middle = (
        result_pointers(work)
        + _extremes_of(work)
        + _maps_struct(work)
        + _prefetch_maps(work)
        + _read_staged(work)
        + _store_results(work.program)
        + ("" if work.stored else _store_chunk(work))
        + _store_moved(work)
    )
    right_rows = not work.parts.products[0].transposed
    middle += wgmma.product(width, factors, right_rows=right_rows)
    if work.parts.precise:
        middle += wgmma.product(smaller(FEW, width), factors, right_rows=False, regs=True)
    if part is not None and part.columns < width:
        middle += wgmma.product(part.columns, factors, right_rows=False)
    prologue = work.parts.prologue
    middle += _load_left(work)
    middle += _load_right(work) + right_factors(work)
    middle += "struct GivenFactor {\n  DEVICE GivenFactor(const Operands&, const Groups&, Index, Index) {}\n};\n"
    promoted = "" if part is None else "PromotedFactor"
    other = "SplitFactor" if work.parts.precise else "UnpackedFactor" if work.parts.packed is not None else promoted
    if other:
        middle += (
            f"struct {other} : GivenFactor {{\n  using GivenFactor::GivenFactor;\n}};\nusing Prologue = {other};\n"
        )
    elif prologue is None:
        middle += "using Prologue = GivenFactor;\n"
    else:
        middle += prologue_cpp.sm90(work.op, work.parts, prologue)
    before = (AMPERE, CLUSTER, HOPPER, *WARP_SPECIALIZED, *(() if prologue is None else ("conv/neighbours.cuh",)))
    files = (
        f"gemm/fetch_{work.source}.cuh",
        *(("gemm/store_moved.cuh",) if work.stored else ()),
        "gemm/sm90.cuh",
        *(("include/split.cuh", "gemm/sm90_precise.cuh") if work.parts.precise else ()),
        *(("gemm/sm90_promoted.cuh",) if promoted else ()),
        *(("gemm/packed_pairs.cuh", "gemm/sm90_packed.cuh") if work.parts.packed is not None else ()),
        *(() if prologue is None else ("gemm/sm90_prologue.cuh",)),
        "gemm/sm90_chunks.cuh",
        "gemm/sm90.cu",
    )
    return kernel(work, before, constants, work.staged, middle, files, end)


@dataclass(frozen=True)
class PartSums:
    """Sums of one step, which are added to those of all steps in float32."""

    columns: int
    """Columns of a warpgroup's 64 rows whose sums are computed at once."""
    sets: int = 1
    """2: one is added while the other one is computed."""

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self.columns // 2 * self.sets


def part_sums(parts: Anatomy, tile: GemmTile, width: int) -> PartSums | None:
    """Return how the sums of a step are kept beside those of all, of `width` columns; None if the tensor cores keep
    float32, or if the registers do not suffice: in a cluster they never do."""
    if not parts.factors.promoted_after or tile.cluster > 1:
        return None
    own, threads = width // 2 * (tile.m // (64 * tile.warpgroups)), WARPGROUP * (tile.warpgroups * tile.teams + 1)
    consumers = limits.REGISTERS - WARPGROUP * costs.KEPT_REGISTERS[0]
    left = consumers // (threads - WARPGROUP) - wgmma.REGISTERS - own
    possible = (PartSums(width // n) for n in (1, 2, 4) if width % (n * 8) == 0)
    return next((p for p in possible if p.registers <= left), None)


def rings(parts: Anatomy, tile: GemmTile) -> int:
    """Return how many rings of stages a block has: one for each team if sums of steps are added up between products."""
    return tile.teams if parts.factors.promoted_after else 1


def _brought(work: GemmSource) -> int:
    """Return how many right factors are brought near: weights, or one if threads compute the left factor."""
    return brought(work) if work.parts.prologue is None else int(not _left_maps(work))


FEW = 64
"""Columns for which unrounded float32 accumulates products in float32 registers while the next ones run."""
SLICES = 4
"""Slices of a 128-byte row: a tensor-core product consumes 32 bytes at a time."""


def slices(size: GemmProblem, terms: int) -> int:
    """Return how many slices of a step are multiplied: for a group of channels so many that steps end with it.

    A window's channels that fill no more than half of a row are half a step: 32 x 56 x 56, 64 channels of 8 bits to 64,
    3 x 3, 17 us, as a whole step of which half is zeros 30 (H200, 2026-11).
    """
    if size.groups == 1:
        return SLICES // 2 if size.window is not None and 2 * settled(size.channels) <= terms else SLICES
    whole = settled(size.channels) * SLICES // terms
    return next(count for count in range(SLICES, 0, -1) if whole % count == 0)


def fetched_slices(work: GemmSource) -> int:
    """Return how many slices of a step TMA loads: of an only step those with terms, which alone are multiplied.

    What lies beyond the terms takes longer than they do: TMA writes zeros there. 401408 x 96 x 16 of 8 bits, fetched in
    rows of 128: 89 us, of which memory explains 11 (H200, 2026-11).
    """
    size, terms = work.size, work.parts.terms
    if size.window is not None:
        return SLICES if size.groups > 1 else slices(size, terms)
    alone = work.parts.prologue is None and not work.parts.precise and not work.stored
    if not alone or not work.parts.products[0].transposed or size.k > terms:
        return SLICES
    return _last_slices(size, terms)


def _last_slices(size: GemmProblem, terms: int) -> int:
    """Return how many of them contain terms in the last step; for a window every step is one element's channels."""
    if size.window is not None:
        return slices(size, terms)
    return settled(-(-(size.k % terms) * SLICES // terms)) or SLICES


def part_warps(tile: GemmTile, left_rows: int) -> int:
    """Return the warps with rows of the left factor, whose sums are exchanged."""
    return smaller(4 * tile.warpgroups, -(-left_rows // 16))


def _extremes_of(work: GemmSource) -> str:
    """Return the number of a result of which the extremes are."""
    number = "0.0f" if work.extremes_of is None else f"result.b{work.extremes_of}"
    return f"DEVICE float ranged(const Result& result) {{ return {number}; }}\n"


def _extra(work: GemmSource) -> int:
    """Return the matrices that TMA loads for the left factor in addition to the in-place one."""
    return 0 if work.parts.prologue is None else len(work.parts.prologue.cells) - 1


def piece_bytes(work: GemmSource) -> int:
    """Return the shared memory per 16 bytes of terms of concatenated matrices: their locations, and the vectors.

    In blocks of 16 bytes; an empty struct is one, too, as in C++.
    """
    prologue = work.parts.prologue
    if prologue is None or not prologue.joined:
        return 0
    wide = ACCESS_BYTES // work.parts.factors.bytes
    columns = (i for i, kind in zip(prologue.inputs, prologue.kinds, strict=True) if kind == "column")
    return 16 + larger(16, sum(-(-wide * element_types.TYPES[work.op.inputs[i]].size // 16) * 16 for i in columns))


def _left_maps(work: GemmSource) -> list[str]:
    """Return the tensor maps of the left factor, or of its prologue's inputs, the in-place one first."""
    prologue = work.parts.prologue
    if prologue is not None and not prologue.fetched:
        return []
    return ["a", *(f"beside[{k}]" for k in range(_extra(work)))]


def _load_left(work: GemmSource) -> str:
    targets = ("to", *(f"beside + {i} * stride" for i in range(_extra(work))))
    lines = "".join(
        f"  terms.load_left({target}, &maps.{name}, arrived);\n"
        for name, target in zip(_left_maps(work), targets, strict=False)
    )
    return (
        "template <class Terms> DEVICE void load_left(const TensorMaps& maps, const Terms& terms, unsigned to, "
        f"unsigned beside, unsigned stride, unsigned arrived) {{\n{lines}}}\n"
    )


def _load_right(work: GemmSource) -> str:
    """Return the load of a right factor's tile by TMA; none of one in few bits."""
    load = "" if work.parts.packed else "  terms.load_right(to, &maps.b[number], column, rank, arrived);\n"
    return (
        "template <class Terms> DEVICE void load_right(const TensorMaps& maps, const Terms& terms, unsigned to, "
        f"int number, Index column, unsigned rank, unsigned arrived) {{\n{load}}}\n"
    )


def computers(parts: Anatomy) -> int:
    """Return the warpgroups that compute the left factor, the low parts of the right one, or that from few bits."""
    return costs.UNPACKING if parts.packed is not None else int(parts.prologue is not None or parts.precise)


def _maps_struct(work: GemmSource) -> str:
    parts = work.parts
    outputs = () if work.stored else range(len(parts.epilogues[0].outputs))
    lanes = "".join(f"  TensorMap out{n}[{len(parts.epilogues)}];\n" for n in outputs)
    if work.staged is not None:
        lanes += f"  TensorMap staged[{len(parts.epilogues)}];\n"
    fields = "  TensorMap a;\n" if _left_maps(work) else ""
    fields += f"  TensorMap beside[{_extra(work)}];\n" if _extra(work) else ""
    fields += "" if parts.packed else f"  TensorMap b[{len(parts.products)}];\n"
    return f"struct TensorMaps {{\n{fields}{lanes}}};\n"


def _prefetch_maps(work: GemmSource) -> str:
    """Return the prefetch of the tensor maps, which overlaps the start of the launch."""
    parts = work.parts
    maps = [*_left_maps(work), *(f"b[{k}]" for k in range(0 if parts.packed else len(parts.products)))]
    outputs = () if work.stored else range(len(parts.epilogues[0].outputs))
    maps += [f"out{n}[{k}]" for n in outputs for k in range(len(parts.epilogues))]
    maps += [f"staged[{k}]" for k in range(len(parts.epilogues))] if work.staged is not None else []
    lines = "".join(f"  prefetch_tensor_map(&maps.{m});\n" for m in maps)
    return f"DEVICE void prefetch_tensor_maps(const TensorMaps& maps) {{\n{lines}}}\n"


def _read_staged(work: GemmSource) -> str:
    """Return how the staged operand is loaded, and how a thread reads its share: at the locations of the first
    output."""
    fetch, take = "", ""
    if work.staged is not None:
        size, row = work.staged_bytes, _row(work)
        fetch = "".join(
            f"  tma_load<false>(to + {part * 2048}, &maps.staged[sibling], column + {part * 32}, {row}, arrived, 0);\n"
            for part in range(max(1, size // 2))
        )
        load = "load_shared" if size > 1 else "load_shared_half"
        take = f"  const unsigned from = {_SWIZZLED[size]};\n" + "".join(
            f"  held.in{work.staged}.word({w}) = {load}(from + half * 1024 + {w * 4});\n"
            for w in range(max(1, size // 2))
        )
    return (
        "DEVICE void load_staged(const TensorMaps& maps, int sibling, Index column, Index row, Index batch, "
        f"unsigned to, unsigned arrived) {{\n{fetch}}}\n"
        "DEVICE void read_staged(CellHeld<2>& held, unsigned buffer, int row, int half, int group, int pair) {\n"
        f"{take}}}\n"
    )


def _store_results(program: BodyProgram) -> str:
    """Return how a thread writes its results to shared memory for the TMA store."""
    lines, offset = [], 0
    for n, output in enumerate(program.outputs):
        stored, size = element_types.TYPES[output.dtype].stored, element_types.TYPES[output.dtype].size
        lines.append(f"  const Stored<{stored}>::Value value{n}[2] = {{result[0].b{n}, result[1].b{n}}};")
        lines.append(f"  const unsigned to{n} = {_SWIZZLED[size]};")
        if size == 2:
            packer = {"f16": "packed_f16<2>", "bf16": "packed_bf16<2>"}.get(stored, f"packed<{stored}, 2>")
            lines.append(f"  store_shared(to{n} + half * 1024 + {offset}, {packer}(value{n}).word(0));")
        elif size == 1:
            low, high = (f"encode(value{n}[{i}], ({stored}*)nullptr)" for i in range(2))
            bytes_of = f"{low} | {high} << 8"
            lines.append(f"  store_shared(to{n} + half * 1024 + {offset}, (unsigned short)({bytes_of}));")
        else:
            lines.append("  UNROLLED for (int w = 0; w < 2; ++w)")
            lines.append(
                f"    store_shared(to{n} + half * 1024 + {offset} + w * 4, packed<{stored}, 2>(value{n}).word(w));"
            )
        offset += 16 * 64 * chunk_bytes(output.dtype)
    head = "// Two neighbours, in a row of the chunk or the one eight below, in a group of eight columns at a pair.\n"
    return (
        head
        + "DEVICE void fill_chunk(unsigned buffer, const Result (&result)[2], int row, int half, int group, "
        + "int pair) {\n"
        + "\n".join(lines)
        + "\n}\n"
    )


def _row(work: GemmSource) -> str:
    """Return the row coordinate of a box: in a single matrix, or in one of several."""
    return "row, batch" if work.product_words else "row"


def _store_chunk(work: GemmSource) -> str:
    lines, offset = [], 0
    row = _row(work)
    for n, output in enumerate(work.program.outputs):
        size = element_types.TYPES[output.dtype].size
        for part in range(max(1, size // 2)):
            lines.append(
                f"  tma_store(&maps.out{n}[sibling], column + {part * 32}, {row}, buffer + {offset + part * 2048});\n"
            )
        offset += 16 * 64 * chunk_bytes(output.dtype)
    return (
        "DEVICE void store_chunk(const TensorMaps& maps, int sibling, Index column, Index row, Index batch, "
        "unsigned buffer) {\n" + "".join(lines) + "}\n"
    )


def _store_moved(work: GemmSource) -> str:
    """Return how a transposed chunk is stored: by threads; without transposition, by TMA."""
    args = "Index column, Index row, unsigned buffer"
    if not work.stored:
        moved = args.replace(" row,", " row, Index m, Index n,")
        return f"DEVICE void store_moved(const Results&, const Stores&, int sibling, {moved}) {{}}\n"
    word = f"Raw<{element_types.TYPES[work.program.outputs[0].dtype].size}>::Word"
    return (
        f"DEVICE void store_chunk(const TensorMaps&, int sibling, {args.replace(' row,', ' row, Index batch,')}) {{}}\n"
        f"using Word = {word};\n"
        "DEVICE Word* output_of(const Results& to, int sibling) {\n"
        f"  return (Word*)({choice(work, 0)});\n}}\n"
    )
