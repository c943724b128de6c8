"""Originals that ONNX Runtime's own optimizations break: their unoptimized results are then used for judging.

ONNX Runtime 1.31 folds a Pad of zeros into the following MaxPool, which is a different function for negative values:
the original is off by more than its largest value, and cannot serve to judge another file. Run without optimizations it
is right, and serves as the yardstick.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.verification.inputs.inputs import perturb
from onnxfuse.verification.reference.ort_reference import REFUSALS
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.tensors import MISSING
from onnxfuse.verification.tolerance import error_budget
from onnxfuse.verification.tolerance.output_error import Measure
from onnxfuse.verification.variants.perturbed import PERTURBATIONS

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

CLOSER = 100.0
"""How many times closer to the reference the unoptimized original must be: different rounding is not a break."""
ATTEMPTS = 3
"""Unsuccessful unoptimized runs before no more are tried."""


class Unoptimized:
    """The unoptimized original, opened when the original is first far from the reference."""

    def __init__(self, open_session: Callable[[], Any]) -> None:
        self._open, self._session = open_session, None
        self._attempts = ATTEMPTS

    def right(self, inputs: dict[str, Array], expected: Arrays, reference: Arrays) -> dict[str, list[Array]]:
        """Return unoptimized runs for each output that is right without optimizations and far off with them: the first
        on `inputs`, the others on perturbed ones, so that its own error is not small by chance."""
        far = [n for n, x in expected.items() if error_budget.exceeds_rounding(x, reference[n])]
        if not far or not self._attempts:
            return {}
        try:
            self._session = self._session or self._open()
            perturbed = [perturb(inputs, seed) for seed in range(PERTURBATIONS)]
            runs = [
                sessions.tensors(self._session, one, far) for one in (inputs, *(m for m in perturbed if m is not None))
            ]
        except REFUSALS:
            self._attempts = 0  # the original does not run there without optimizations: inconclusive
            return {}
        right_runs = {
            n: values
            for n in far
            if _near(
                values := [run.get(n, MISSING) for run in runs],
                reference[n],
                error_budget.off(expected[n], reference[n]) / CLOSER,
            )
        }
        self._attempts -= not right_runs
        return right_runs


def _near(values: Sequence[Array], reference: Array, bound: float) -> bool:
    return all(
        not error_budget.exceeds_rounding(x, reference) and error_budget.off(x, reference) <= bound for x in values
    )


def measure_against_unoptimized(
    fused: Array, broken: Array, runs: Sequence[Array], reference: Array, **options: Any
) -> Measure:
    """Measure `fused` against the unoptimized runs of an original that comes out as `broken`.

    An output that follows the broken one, as closely as the right one may follow the reference, is what the original's
    own file yields.
    """
    share = error_budget.off(broken, reference)
    measure = error_budget.measure(fused, runs, reference, **options)
    if measure.fault:
        own = error_budget.measure(runs[0], runs, reference)
        exact = broken.astype(np.float64) if broken.dtype.kind in "fV" else broken
        like = error_budget.measure(fused, [broken], exact, **options)
        like = replace(like, own=own.own, own_typical=own.own_typical, own_off=share, follows=True)
        if not like.fault:
            return like
    return replace(measure, own_off=share)
