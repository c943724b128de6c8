"""Emit a kernel's entry point: untyped pointers first, then the parameters by value."""

from collections.abc import Iterable

from onnxfuse.codegen.emit.access import Operand, Pointer
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.model.fused import FusedOp


def kernel(entry: str, inputs: int, outputs: int, body: str, *, bounds: str = "KERNEL(THREADS)", more: str = "") -> str:
    """Return the kernel function: input and output pointers, `more` arguments, then the parameters by value."""
    arguments = [f"const void* in{i}" for i in range(inputs)] + [f"void* out{n}" for n in range(outputs)]
    return f"{bounds} {entry}({', '.join([*arguments, *([more] if more else []), 'PARAMETERS p'])}) {{\n{body}}}\n"


def typed(pointers: Iterable[Pointer]) -> str:
    """Return the kernel arguments for `pointers`, cast to their types, as the struct's initializers."""
    return ", ".join(p.argument if p.argument == "nullptr" else f"({p.stored}*){p.argument}" for p in pointers)


def entry_point(
    entry: str, work: str, of: BodyProgram | FusedOp, fields: Iterable[Operand | Pointer], min_blocks: int,
    cluster: int = 1, prefetch: str = "",
) -> str:  # fmt: skip
    """Return the kernel function of a body, which calls `work` with the typed pointers and the parameters.

    `min_blocks`: minimum resident blocks per multiprocessor for register allocation, 0 = any; `prefetch`: prefetch
    statements that may run while the preceding kernel still does.
    """
    pointers = tuple(f.pointer for f in fields)
    bounds = f"THREADS, {min_blocks}" if min_blocks else "THREADS"
    return kernel(
        entry, len(of.inputs), len(of.outputs), f"{prefetch}  join_stream();\n  {work}({{{typed(pointers)}}}, p);\n",
        bounds=f"CLUSTER_KERNEL({cluster}, {bounds})" if cluster > 1 else f"KERNEL({bounds})",
        more="void* scratch" if any(p.argument == "scratch" for p in pointers) else "",
    )  # fmt: skip
