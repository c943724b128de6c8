"""Additional rounding that may explain an error beyond the budget although runs of the original do not show it."""

from typing import Literal

from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.run import sessions

Rounding = Literal["", "tf32", "half"]
"""`tf32`: factors of float32 products rounded to TF32, and sums of float8 numbers as tensor cores keep them; `half`:
every half-precision value rounded after its node."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Types of outputs that rounding changes."""


def rounding_behind(report: VerifyReport, *, halves: bool, wide: bool) -> Rounding:
    """Return the rounding under which the original may be as far from the reference as the failing outputs; empty if
    none.

    On CUDA, sessions may round the factors of float32 products to TF32: the libraries choose the algorithm for the
    original, but the session permits the rounding. The same option permits sums of float8 numbers of fewer bits than
    float32 has. On the CPU, ONNX Runtime keeps float32 between half-precision operators without kernels, and so rounds
    less than these are defined to: `halves` says whether the original holds such types. Such a rounding could hide a
    fault of floats, so that they are compared in float32, too (`wide`). Neither hides any of outputs on a grid of
    steps: each element must be that of some run, on any provider.
    """
    wrong = [r for r in report.rows if r.verdict in ("mismatch", "undecided") and not r.measure.empty]
    if report.problems or not wrong or any(r.tolerance is not None or r.measure.unlike for r in wrong):
        return ""
    if halves and all(r.measure.grid for r in wrong):
        return "half"
    if any(r.measure.broken and not r.measure.grid for r in wrong):
        return ""
    if may_round_products(report) and report.truth == "float64" and all(r.dtype == "float32" for r in wrong):
        return "tf32"
    if sessions.CPU in _ran_on(report) and halves and wide and all(r.dtype in FLOATS for r in wrong):
        return "half"
    return ""


def may_round_products(report: VerifyReport) -> bool:
    """Return whether sessions ran on CUDA that may round products of float32, and sums of float8 numbers."""
    return sessions.CUDA in _ran_on(report) and not report.without_tf32


def _ran_on(report: VerifyReport) -> tuple[str, str]:
    return report.provider, report.fused_provider
