"""Source generation of the gemm template: kernels of sm_80, and shared parts."""

from collections.abc import Mapping

from onnxfuse.codegen.emit import entry as entries
from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.emit.source import (  # fmt: skip
    CLUSTER,
    DEVICE,
    MMA_SYNC,
    KernelSource,
    Section,
    constants,
    generated,
    template,
)
from onnxfuse.cuda.templates.gemm import costs, prologue_cpp
from onnxfuse.cuda.templates.gemm.epilogue_cpp import around, results
from onnxfuse.cuda.templates.gemm.problem import GemmProblem
from onnxfuse.cuda.templates.gemm.variant import Block
from onnxfuse.cuda.templates.gemm.work import Fit, GemmSource, LeftRows, SkinnyParameters
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.packing import WIDTHS

PAIRED_BITS = WIDTHS[1:]
"""Bits of the numbers of which instructions for pairs of 16-bit elements make such."""


def sm80(work: GemmSource, fit: Fit) -> KernelSource:
    """Return the kernel for the tensor cores of sm_80 and later."""
    block = fit.block
    products, window, prologue = work.parts.products, work.size.window, work.parts.prologue
    facts = {
        "THREADS": block.threads, "TILE_M": block.m, "TILE_N": block.n, "WARPS_M": block.warps_m,
        "WARPS_N": block.warps_n, "WARPS_K": block.warps_k, "STAGES": fit.stages, "SHARED_BYTES": fit.shared_bytes,
        "WIDTH": fit.width, "A_PIECE": fit.a_piece, "B_PIECE": fit.b_piece,
        "CHANNELS": work.size.channels if window else 1, "PIXEL": window.shape[-1] if window else 1,
        "WINDOW_HEIGHT": window.kernel[-2] if window else 1, "WINDOW_WIDTH": window.kernel[-1] if window else 1,
        "A_TRANSPOSED": products[0].a_transposed, "A_CUT": products[0].terms is not None, "WINDOW": window is not None,
        "PROLOGUE": prologue is not None, "STREAMED": streamed(block), "PRECISE": work.parts.precise,
        "BROUGHT": brought(work),
    }  # fmt: skip
    middle = right_factors(work)
    if prologue is None:
        middle += prologue_cpp.none()
    else:
        middle += prologue_cpp.sm80(work.op, work.parts, prologue, block.m, fit.along)
    neighbours = () if prologue is None else ("conv/neighbours.cuh", "conv/neighbours_ahead.cuh")
    after = ("gemm/sums.cuh", "gemm/sm80.cuh", *_unpacking(work), "gemm/sm80.cu")
    return kernel(work, (*MMA_SYNC, *neighbours), facts, None, middle + results(work), after, entry(work, fit.resident))


def brought(work: GemmSource) -> int:
    """Return how many right factors are brought to the L2 cache while the kernel ahead ends: small weights."""
    parts, size = work.parts, work.size
    weights = parts.packed is None and all(product.b in work.op.constants for product in parts.products)
    small = sum(size.widths) * size.k * parts.factors.bytes <= costs.wgmma().brought
    return len(parts.products) if weights and small and size.batch is None else 0


def _unpacking(work: GemmSource) -> tuple[str, ...]:
    """Return the files by which the kernel for sm_80 makes elements of a right factor in few bits."""
    packed = work.parts.packed
    if packed is None:
        return ()
    by_pairs = packed.packing.bits in PAIRED_BITS and work.parts.factors.bytes == 2
    return ("gemm/packed_pairs.cuh" if by_pairs else "gemm/packed_floats.cuh", "gemm/sm80_packed.cuh")


def few(work: GemmSource, fit: SkinnyParameters) -> KernelSource:
    """Return the kernel for few rows."""
    facts = {
        "THREADS": fit.strip.threads, "COLUMNS": fit.strip.columns, "WARPS": fit.strip.warps, "ROWS": fit.rows,
        "STAGES": fit.stages, "SHARED_BYTES": fit.shared_bytes, "LEFT_BYTES": work.left_bytes, "WIDTH": fit.width,
        "CONSTANT": fit.constant,
        **({"LINE": fit.line} if fit.line else {"SEVERAL": fit.several}),
    }  # fmt: skip
    end = entries.kernel(
        work.entry, len(work.op.inputs), len(work.op.outputs), f"  gemm({pointers(work.op)}, p);\n",
        bounds=f"KERNEL(THREADS, {fit.resident})",
    )  # fmt: skip
    left = fit.left
    fields = "" if left is None else " left_rows::Parameters rows; "
    middle = f"{right_factors(work)}{results(work)}struct LeftParameters {{{fields}}};\n"
    main = ("gemm/few.cu",) if work.parts.packed is None else ("gemm/packed_pairs.cuh", "gemm/few_packed.cu")
    after = ("gemm/sums.cuh", "gemm/few_cells.cuh", generated(work.entry, _left_factor(work, left)), *main)
    if left is None:
        return kernel(work, MMA_SYNC, facts, None, middle, after, end)
    begin, close = (generated(work.entry, text) for text in ("namespace left_rows {\n", "}  // namespace left_rows\n"))
    return kernel(work, (*MMA_SYNC, CLUSTER, begin, *left.sections, close), facts, None, middle, after, end)


def _left_factor(work: GemmSource, left: LeftRows | None) -> str:
    """Return how a block of the kernel for few rows gets the left factor, and what is brought near before."""
    if left is None:
        return (
            "using LeftMatrix = const Factor*;\nDEVICE void bring_left_near(const Operands&) {}\n"
            "DEVICE LeftMatrix left_factor(const Operands& operands, const Parameters&) { return operands.a(); }\n"
        )
    near = "".join(f"  bring_near(operands.in{i}, {size});\n" for i, size in left.ahead)
    fields = "".join(f"({p.stored}*)operands.{p.argument}, " for p in left.pointers)
    return (
        f"using LeftMatrix = SharedAddress;\nDEVICE void bring_left_near(const Operands& operands) {{\n{near}}}\n"
        "// Computed by the block, behind its ring.\n"
        "DEVICE LeftMatrix left_factor(const Operands& operands, const Parameters& p) {\n"
        "  Factor* const kept = (Factor*)(shared_floats + (SHARED_BYTES - LEFT_BYTES) / 4);\n"
        f"  left_rows::rows_of_block({{{fields}kept, nullptr}}, p.rows);\n"
        "  return shared_address(kept);\n}\n"
    )


def right_factors(work: GemmSource) -> str:
    """Return the type of the factors' elements, and the right factors by product index."""
    choices = "".join(f"  if (number == {k}) return from.b<{k}>();\n" for k in range(1, len(work.parts.products)))
    return (
        f"using Factor = {work.parts.factors.stored};\n"
        f"DEVICE RightFactor right_factor(const Operands& from, int number) {{\n{choices}  return from.b<0>();\n}}\n"
    )


def streamed(block: Block) -> bool:
    """Return whether a warp loads B fragments just in time, because they do not fit the registers in addition to the
    accumulators."""
    return block.m * block.n // (32 * block.warps_m * block.warps_n) > 128


def source_fields(size: GemmProblem) -> tuple[int, ...]:
    """Return the fields of the kernels' `Source`."""
    window = size.window
    if window is None:
        return ()
    flat = 3 - len(window.kernel)  # images are volumes of depth one
    one, none = (1,) * flat, (0,) * flat
    return (
        *one, *window.shape[1:-1], size.channels, window.shape[-1], *one, *window.out, *one, *window.strides,
        *none, *window.begin, *one, *window.dilations, *window.kernel[-2:],
    )  # fmt: skip


def kernel(
    work: GemmSource,
    before: tuple[str | Section, ...],
    facts: Mapping[str, bool | int],
    staged: int | None,
    middle: str,
    after: tuple[str | Section, ...],
    end: str,
) -> KernelSource:
    """Return the kernel: the constants, the body, its operands, then the template and the entry point."""
    text = constants({
        **facts, "ACCUMULATED": work.first_operand, "SIBLINGS": len(work.parts.epilogues),
        "EVEN": not work.size.uneven,
        "B_TRANSPOSED": work.parts.products[0].transposed, "MOVED": bool(work.stored),
        "BATCHED": bool(work.product_words), "PACKED": work.parts.packed is not None, "GROUPED": work.size.groups > 1,
        "VOLUME": work.size.window is not None and len(work.size.window.kernel) == 3,
    })  # fmt: skip
    several = "ChannelGroups" if work.size.batch is None else "Batch"
    text += f"using Products = {several if work.product_words else 'OneProduct'};\n"
    text += f"struct Stores {{{' Layout layouts[SIBLINGS]; ' if work.stored else ''}}};\n"
    text += f"struct Groups {{{' Divisor<Index> group; ' if work.group_words else ''}}};\n"
    text += expressions.source(work.program) + around(work, staged) + middle
    moved = ("gemm/stored.cuh",) if work.stored else ()
    packed = ("gemm/packed.cuh",) if work.parts.packed is not None else ()
    header = () if work.parts.factors.header is None else (work.parts.factors.header,)
    memory = ("include/math.cuh", "include/memory.cuh", "include/extremes.cuh", *header)
    files = (DEVICE, *memory, "gemm/gemm.cuh", f"gemm/{work.source}.cuh", *packed, *moved, *before)
    head, *rest = map(_section, files)
    return KernelSource(
        work.entry,
        (
            head,
            generated(work.entry, "using Index = unsigned;\n"),
            *rest,
            generated(work.entry, text),
            *map(_section, after),
            generated(work.entry, end),
        ),
    )


def _section(part: str | Section) -> Section:
    """Return a template's file as a section of the text."""
    return part if isinstance(part, Section) else template(part)


def entry(work: GemmSource, resident: int = 0) -> str:
    """Return the kernel function, with minimum resident blocks per multiprocessor for the compiler; 0 = any."""
    return entries.kernel(
        work.entry, len(work.op.inputs), len(work.op.outputs), f"  gemm({pointers(work.op)}, p);\n",
        bounds=f"KERNEL(THREADS, {resident})" if resident else "KERNEL(THREADS)",
    )  # fmt: skip


def pointers(op: FusedOp, scratch: str = "nullptr") -> str:
    """Return the kernel's arguments in the templates' form: the inputs, and the outputs and the scratch memory."""
    inputs, outputs = (
        ", ".join(f"{n}{i}" for i in range(len(of))) for n, of in (("in", op.inputs), ("out", op.outputs))
    )
    return f"{{{inputs}}}, {{{outputs}, {scratch}}}"
