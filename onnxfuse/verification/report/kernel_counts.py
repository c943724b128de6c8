"""How the fused ops of a session ran: as kernels, as ONNX Runtime's own ops, or through their bodies."""

from collections.abc import Collection, Sequence
from typing import Any

from onnxfuse import runtime
from onnxfuse.verification.report.rows import KernelRow


def kernel_rows(session: Any) -> tuple[KernelRow, ...]:
    """Return how each fused op of a session ran, by the counts since they were reset."""
    calls, launches = runtime.calls(), runtime.launches()
    return tuple(
        KernelRow(p.op, p.rule, p.nodes, p.runs_as, p.reason, calls.get(p.op, 0), launches.get(p.op, 0))
        for p in session.fused
    )


def launch_problems(kernels: Sequence[KernelRow], excused: Collection[str] = ()) -> list[str]:
    """Return which fused ops ran neither as kernels nor in the library, and why; `excused` ones need not be called."""
    problems = []
    for row in kernels:
        if row.runs_as == "body":
            problems.append(f"fused op {row.op} ran as its body, not as a kernel: {row.reason or 'no reason given'}")
        elif row.runs_as == "kernel" and row.calls == 0 and row.op not in excused:
            problems.append(f"fused op {row.op} was never called")
    return problems
