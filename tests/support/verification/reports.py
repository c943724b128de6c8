"""Reports of verifications that nobody ran: rows of chosen measures."""

from dataclasses import replace
from typing import Any

from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.report.rows import CaseRow, OutputRow
from onnxfuse.verification.tolerance.output_error import NOTHING, Measure

MEASURED = replace(
    NOTHING, elements=12, compared=12, scale=4.0, own=1e-6, own_typical=0.5, error=1.5e-6, step=1e-7, typical=0.6,
    where=(0, 3), eps=2.0**-23,
)  # fmt: skip
"""Of a float32 output that is right: its error is within twice the original's own, and that is small."""
WRONG: dict[str, Any] = {"error": 0.5}
UNDECIDED: dict[str, Any] = {"own": 3.0, "error": 0.0}
BLUNT: dict[str, Any] = {"own": 0.2, "error": 0.1}
EMPTY: dict[str, Any] = {"elements": 0, "compared": 0, "error": 0.0, "own": 0.0, "typical": 0.0, "scale": 0.0}


def measure(**facts: Any) -> Measure:
    """Return the measure of an output that is right but for these facts."""
    return replace(MEASURED, **facts)


def row(output: str = "y", case: int = 0, dtype: str = "float32", **facts: Any) -> OutputRow:
    """Return the row of an output; facts of the row by its names, others of its measure."""
    own = {name: facts.pop(name) for name in ("tolerance", "contract", "part_of", "keys") if name in facts}
    return OutputRow(output, dtype, case, measure(**facts), **own)


def report(*rows: OutputRow, **facts: Any) -> VerifyReport:
    """Return the report with these rows, on the CPU, and as many cases of different shapes as they need."""
    count = 1 + max((r.case for r in rows), default=-1)
    cases = tuple(CaseRow("default", n, {"x": (n + 1, 8)}, 0.5) for n in range(count))
    known: dict[str, Any] = {
        "provider": "CPUExecutionProvider", "truth": "float64", "truth_how": "onnx.reference", "truth_why": "",
        "cases": cases, "kernels": (), "problems": (), "seconds": 1.5,
    }  # fmt: skip
    return VerifyReport(rows=rows, **(known | facts))
