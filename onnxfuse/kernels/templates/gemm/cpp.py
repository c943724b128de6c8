"""The generated text of the gemm template's kernels: the plain one, that for sm_80 and what all have."""

from onnxfuse.kernels.emit import expressions
from onnxfuse.kernels.emit.source import AMPERE, DEVICE, KernelSource, generated, template
from onnxfuse.kernels.ir import types
from onnxfuse.kernels.launch_plan import Block
from onnxfuse.kernels.templates.gemm import prologue_cpp
from onnxfuse.kernels.templates.gemm.epilogue_cpp import operands, results
from onnxfuse.kernels.templates.gemm.problem import Problem
from onnxfuse.kernels.templates.gemm.work import Fit, Work
from onnxfuse.model.fused import FusedOp


def plain(work: Work, threads: int) -> KernelSource:
    """Return the kernel that takes any size and any pointers."""
    inputs = ", ".join(f"in{i}" for i in range(len(work.op.inputs)))
    outputs = ", ".join(f"out{n}" for n in range(len(work.op.outputs)))
    end = (
        f"KERNEL(THREADS) {work.entry}({arguments(work.op)}, PARAMETERS p) {{\n  join_stream();\n"
        f"  gemm({{{inputs}}}, {{{outputs}}}, p);\n}}\n"
    )
    return kernel(work, (), {"THREADS": threads}, None, results(work), ("gemm/plain.cu",), end)


def sm80(work: Work, fit: Fit) -> KernelSource:
    """Return the kernel for the tensor cores of sm_80 and later."""
    inputs = ", ".join(f"in{i}" for i in range(len(work.op.inputs)))
    outputs = ", ".join(f"out{n}" for n in range(len(work.op.outputs)))
    block = fit.block
    end = (
        f"KERNEL(THREADS) {work.entry}({arguments(work.op)}, PARAMETERS p) {{\n  join_stream();\n"
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
    return kernel(work, (AMPERE, *ahead), constants, None, middle + results(work), ("gemm/sm80.cu",), end)


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


def kernel(
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
    text += expressions.source(work.program) + operands(work, staged) + middle
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


def arguments(op: FusedOp) -> str:
    arguments = [f"const void* in{i}" for i in range(len(op.inputs))]
    return ", ".join(arguments + [f"void* out{n}" for n in range(len(op.outputs))])
