"""Re-examine a case that exceeds its budget before reporting it as wrong.

All outputs of a case may share one cause, and are then few samples however many they are: the thousand logits of a
classifier are computed from the means of one image. The original's own error in one case may be small by chance; on
nearby inputs it is not. Or the largest error belongs to few elements that amplify earlier rounding: the exp of a box, a
score whose logit is the difference of two large numbers. So the original is run on perturbed inputs, and as other
variants. All of these add their sums in one order, and a fused model adds them in another: so errors of random orders
are drawn (`error_draws`), as many as it takes. Last it is run nearby: the same inputs with every number changed by
about a percent, and some of the ids redrawn. Each run shows how large its error is *here*; errors elsewhere, where the
original may be blunt, widen nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.support import process_limits
from onnxfuse.support.progress import Progress
from onnxfuse.verification.cases.planning import shapes_text
from onnxfuse.verification.compare.case_comparison import Comparison
from onnxfuse.verification.inputs.inputs import Case, InputSpec, sizes_of
from onnxfuse.verification.reference.float64_reference import REFERENCE_GAPS
from onnxfuse.verification.reference.reference import OutOfTime
from onnxfuse.verification.report.rows import OutputRow
from onnxfuse.verification.run import sessions
from onnxfuse.verification.tolerance import error_budget
from onnxfuse.verification.tolerance.output_error import Measure

Array = npt.NDArray[Any]

NEIGHBORS = 4
"""Number of nearby inputs: that the original's own error is small by chance on all five is rare."""
NEAR = 2.0**-6
"""Relative change of a number: thousands of rounding steps, without changing the conditioning."""
REDRAWN = 0.25
"""Share of the ids that are redrawn."""
NO_LUCK = 100.0
"""An error this many times the budget needs no re-examination: an own error below a hundredth of its spread is rare.
For a model that selects by value no error is too large, because a rounding may change the selection."""


DRAWS = 32
"""Number of drawn errors. Of independent normal errors, one more is beyond twice the largest of so many with a chance
of 2 in 10,000 for an output of a single number, and below 1 in 10,000 from two numbers on."""
SURE_AFTER, SURE = 4, 10.0
"""After so many draws an error this many times the budget needs no more: of a single number that is as rare."""


def reexamine(
    comparison: Comparison, case_of: Callable[[int], Case], specs: Sequence[InputSpec], progress: Progress
) -> None:
    """Rerun the doubtful cases, the worst first, and widen their budgets by the original's error nearby.

    An output that is wrong beyond doubt in one case is not re-examined in the others. `case_of` returns the inputs of a
    position in `comparison.cases`.
    """
    hopeless = math.inf if comparison.facts.selects else NO_LUCK
    doubted = _doubted(comparison.rows, hopeless)
    if not doubted:
        return
    comparison.extend_limits()
    if any(comparison.cases[n].seed is not None for n in doubted):
        comparison.treat_as_doubtful()
    wrong: set[str] = set()
    for count, n in enumerate(doubted):
        if _faulty(comparison.rows, n) <= wrong:
            continue
        case = case_of(n)
        progress(f"again {case.name} {shapes_text(case)}", count, len(doubted))
        comparison.run_again(n, case)
        if _faulty(comparison.rows, n):
            _draw_errors(comparison, n, case.make())
        if _faulty(comparison.rows, n):
            _widen(comparison, n, nearby_measures(comparison, case.make(), specs))
        wrong |= _faulty(comparison.rows, n)


def _doubted(rows: Sequence[OutputRow], hopeless: float) -> list[int]:
    """Return the cases in which an output exceeds its budget, the worst first; none if one exceeds it by the factor
    `hopeless`."""
    worst: dict[int, float] = {}
    for row in rows:
        if row.tolerance is None and row.measure.fault:
            worst[row.case] = max(worst.get(row.case, 0.0), row.measure.severity)
    return [] if any(s > hopeless for s in worst.values()) else sorted(worst, key=lambda n: -worst[n])


def _faulty(rows: Sequence[OutputRow], case: int) -> set[str]:
    return {r.output for r in rows if r.case == case and r.tolerance is None and r.measure.fault}


def _draw_errors(comparison: Comparison, case: int, inputs: dict[str, Array]) -> None:
    """Widen the budgets of a case by the errors of other orders of summation, until the fused model stays within
    them."""
    if comparison.error_draws is None:
        return
    try:
        expected = sessions.tensors(comparison.original.session, inputs)
        reference, _ = comparison.reference_of(inputs, expected)
        for seed in range(DRAWS):
            with process_limits.memory(comparison.limits.memory):
                drawn = comparison.error_draws(inputs, seed, comparison.limits.ends)
            # The result of another choice may have another shape.
            runs = {
                n: drawn[n].astype(x.dtype) for n, x in expected.items() if n in drawn and drawn[n].shape == x.shape
            }
            measures = _measures(comparison, runs, reference, ())
            # Errors that hide a wrong weight are not excused by an order that the original does not have.
            _widen(comparison, case, [{n: m for n, m in measures.items() if not m.hides_faults}])
            used = max(r.measure.severity for r in comparison.rows if r.case == case and r.tolerance is None)
            if used <= 1 or (seed + 1 >= SURE_AFTER and used > SURE):
                return
    except (OutOfTime, MemoryError, *REFERENCE_GAPS):
        return  # the draws so far are what the limits allow, and random results: a size that is computed may be no more


def nearby_measures(
    comparison: Comparison, inputs: dict[str, Array], specs: Sequence[InputSpec]
) -> list[Mapping[str, Measure]]:
    """Return the original's own measures near these inputs, by output, as many as the time allows."""
    measures: list[Mapping[str, Measure]] = []
    for seed in range(NEIGHBORS):
        nearby = neighbor(inputs, specs, seed)
        if nearby is None or comparison.limits.over:
            break
        measures.append(_own(comparison, nearby))
    return measures


def _own(comparison: Comparison, inputs: dict[str, Array]) -> Mapping[str, Measure]:
    """Return the original's own error; empty if it or the reference has no result."""
    try:
        expected = sessions.tensors(comparison.original.session, inputs)
        reference, _ = comparison.reference_of(inputs, expected)
    except OutOfTime:
        return {}
    except sessions.ORT_ERRORS:
        return {}  # one neighbor less: near the edge of its domain the original rejects inputs
    further_runs = [comparison.by_twin(inputs)]
    further_runs += [comparison.original.rounded(inputs)] if comparison.original.rounded is not None else []
    return _measures(comparison, expected, reference, further_runs)


def _measures(
    comparison: Comparison,
    values: Mapping[str, Array],
    reference: Mapping[str, Array],
    further_runs: Sequence[Mapping[str, Array]],
) -> Mapping[str, Measure]:
    """Return the own errors of runs of the original, by output."""
    return {
        n: error_budget.measure(
            x,
            [x, *(o[n].astype(x.dtype) for o in further_runs if n in o and o[n].shape == x.shape)],
            reference[n],
            step=comparison.facts.steps.get(n, 0.0),
            float8=comparison.facts.float8.get(n, 0.0),
        )
        for n, x in values.items()
    }


def _widen(comparison: Comparison, case: int, nearby: Sequence[Mapping[str, Measure]]) -> None:
    for rows in (comparison.rows, comparison.exact):
        for n, row in enumerate(rows):
            if row.case == case:
                measures = [one[row.output] for one in nearby if row.output in one]
                rows[n] = replace(row, measure=error_budget.with_worst_error(row.measure, measures))


def neighbor(inputs: Mapping[str, Array], specs: Sequence[InputSpec], seed: int) -> dict[str, Array] | None:
    """Return nearby inputs: floats changed by up to NEAR, integers by up to 1, some ids redrawn.

    Masks and sizes are unchanged. None if nothing changes.
    """
    rng = np.random.default_rng(seed)
    by_name = {s.name: s for s in specs}
    sizes = sizes_of([s for s in specs if s.name in inputs], {n: x.shape for n, x in inputs.items()})
    nearby = {n: _moved(x, by_name.get(n), sizes, rng) for n, x in inputs.items()}
    return None if all(np.array_equal(nearby[n], x) for n, x in inputs.items() if x.dtype.kind in "fViu") else nearby


def _moved(x: Array, spec: InputSpec | None, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    if x.dtype.kind in "fV":
        with np.errstate(over="ignore", invalid="ignore"):
            wide = x.astype(np.float64) * (1 + NEAR * rng.uniform(-1, 1, x.shape))
            return np.asarray(np.where(np.isfinite(wide), wide, x.astype(np.float64)).astype(x.dtype))
    if spec is None or x.dtype.kind not in "iu" or not x.size:
        return x
    ends = spec.role.ends(sizes) if spec.role.points else None
    if ends is not None:
        ids = rng.integers(*ends, x.shape, endpoint=True)
        return np.where(rng.random(x.shape) < REDRAWN, ids, x).astype(x.dtype)
    if spec.role.kind == "number":
        info = np.iinfo(x.dtype)
        step = rng.integers(-1, 2, x.shape)
        inside = (x > info.min) & (x < info.max)
        return np.where(inside, x + step.astype(x.dtype), x).astype(x.dtype)
    return x
