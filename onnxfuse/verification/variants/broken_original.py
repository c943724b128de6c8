"""An original that ONNX Runtime's own optimizations break: what is right then is what it computes without them.

ONNX Runtime 1.31 folds a Pad of zeros into the MaxPool behind it, which is another function where the values are
negative: the original is off by more than its largest value, and proves nothing about another file. Run as it stands it
is right, and judges.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.verification.inputs.inputs import nudge
from onnxfuse.verification.reference.ort_reference import REFUSALS
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.tensors import MISSING
from onnxfuse.verification.tolerance import error_budget
from onnxfuse.verification.tolerance.output_error import Measure
from onnxfuse.verification.variants.perturbed import NUDGES

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

BETTER = 100.0
"""How many times as near the truth the original has to be without optimizations: rounding otherwise is no break."""
ATTEMPTS = 3
"""Cases in which the original is run without optimizations and is no better, before it is not asked again."""


class Unoptimized:
    """The original as it stands, opened where it is first far from the truth."""

    def __init__(self, open_session: Callable[[], Any]) -> None:
        self._open, self._session = open_session, None
        self._attempts = ATTEMPTS

    def right(self, inputs: dict[str, Array], expected: Arrays, truth: Arrays) -> dict[str, list[Array]]:
        """Return its runs for each output that is right without optimizations and far off with them: the first on
        `inputs`, the others on nudged ones, so that its own error is no luck."""
        far = [n for n, x in expected.items() if error_budget.exceeds_rounding(x, truth[n])]
        if not far or not self._attempts:
            return {}
        try:
            self._session = self._session or self._open()
            moved = [nudge(inputs, seed) for seed in range(NUDGES)]
            runs = [sessions.tensors(self._session, one, far) for one in (inputs, *(m for m in moved if m is not None))]
        except REFUSALS:
            self._attempts = 0  # it does not run there without them: nothing is to be learned from it
            return {}
        found = {
            n: values
            for n in far
            if _near(
                values := [run.get(n, MISSING) for run in runs],
                truth[n],
                error_budget.off(expected[n], truth[n]) / BETTER,
            )
        }
        self._attempts -= not found
        return found


def _near(values: Sequence[Array], truth: Array, most: float) -> bool:
    return all(not error_budget.exceeds_rounding(x, truth) and error_budget.off(x, truth) <= most for x in values)


def measure_against_unoptimized(
    fused: Array, broken: Array, runs: Sequence[Array], truth: Array, **options: Any
) -> Measure:
    """Return the measure of `fused` beside the unoptimized runs of an original that comes out as `broken`.

    What follows the broken one as nearly as the right one may be to the truth is what the original's own file gives.
    """
    share = error_budget.off(broken, truth)
    measure = error_budget.measure(fused, runs, truth, **options)
    if measure.fault:
        own = error_budget.measure(runs[0], runs, truth)
        exact = broken.astype(np.float64) if broken.dtype.kind in "fV" else broken
        like = error_budget.measure(fused, [broken], exact, **options)
        like = replace(like, own=own.own, own_typical=own.own_typical, own_off=share, follows=True)
        if not like.fault:
            return like
    return replace(measure, own_off=share)
