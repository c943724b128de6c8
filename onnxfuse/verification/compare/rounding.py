"""Which rounding, that a run of the original does not show, may be behind an error that is out of the budget."""

from typing import Literal

from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.run import sessions

Rounding = Literal["", "tf32", "half"]
"""The factors of float32 products rounded to TF32; every value of a half type rounded to it behind its node."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Types of outputs that a rounding moves."""


def rounding_behind(report: VerifyReport, *, halves: bool) -> Rounding:
    """Return by which rounding the original may be as far from the truth as what is wrong; empty where by none.

    On CUDA sessions may round the factors of float32 products to TF32: which algorithm the libraries take for the
    original is their choice, what they may round is the session's. On the CPU ONNX Runtime keeps float32 between the
    operators of a half type that it has no kernels for, and so rounds less than these are defined to: `halves` says
    whether the original holds such types.
    """
    wrong = [r for r in report.rows if r.verdict in ("mismatch", "undecided") and not r.measure.empty]
    if report.problems or not wrong or any(r.tolerance is not None or r.measure.broken for r in wrong):
        return ""
    ran_on = (report.provider, report.fused_provider)
    may_round = sessions.CUDA in ran_on and not report.without_tf32 and report.truth == "float64"
    if may_round and all(r.dtype == "float32" for r in wrong):
        return "tf32"
    if sessions.CPU in ran_on and halves and all(r.dtype in FLOATS for r in wrong):
        return "half"
    return ""
