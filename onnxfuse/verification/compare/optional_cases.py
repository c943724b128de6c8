"""Speculative cases: run a case and record it only if its result is informative."""

import math
from collections.abc import Callable, Sequence

from onnxfuse.verification.compare.case_comparison import FUSED_FAILS, Comparison
from onnxfuse.verification.inputs.inputs import Case
from onnxfuse.verification.report.rows import OutputRow

NOT_INFORMATIVE = "it tells nothing more"
"""Why a case is not recorded whose rows add no information."""

Keep = Callable[[Sequence[OutputRow]], bool]


def try_case(comparison: Comparison, case: Case, seconds: float, keep: Keep, bound: float = math.inf) -> str:
    """Run a case within a time limit; return why it was not recorded, empty if it was.

    `keep` decides whether its rows are worth recording. No value of the reference may exceed `bound`.
    """
    rows, exact, reference, limits = len(comparison.rows), len(comparison.exact), comparison.truth, comparison.limits
    differences = [] if comparison.wide is None else [*comparison.wide.found]
    comparison.limits = limits.at_most(seconds)
    longest, comparison.longest = comparison.longest, 0.0  # its duration is accounted for by the caller
    with reference.within(bound):
        comparison.run(case)
    comparison.limits, comparison.longest = limits, max(longest, comparison.longest)
    last, changed = comparison.cases[-1], comparison.truth is not reference
    if last.note == FUSED_FAILS or (not last.note and not changed and keep(comparison.rows[rows:])):
        return ""
    del comparison.rows[rows:], comparison.exact[exact:], comparison.cases[-1]
    comparison.truth = reference
    if comparison.wide is not None:
        comparison.wide.found = differences
    return last.note or ("what it needs is not there" if changed else NOT_INFORMATIVE)
