"""Judge a quantized model part by part, each on the original's own values.

A model that rounds inside cannot be judged by its outputs: a value in the middle of two steps is rounded to either by
runs that differ in the last digit, and what is one step apart in one layer brings values of the next to the other side.
After twelve layers the original itself is far from the float64 reference, and so is whatever computes the same. So the
models are partitioned at the values that both compute, and where the fused one has them in another form (`anchors`).
Each part gets the original's own values; then integers must be equal in 99.9% of the elements and nowhere more than one
step apart, and floats must be within the error budget of the original's nodes there; a part that rounds inside may move
by what ties there make of it (`inner_ties`). As every part ends where others
begin, parts that are all right make a model that is right.
"""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from onnxfuse.support.progress import Progress, silent
from onnxfuse.verification.cases.planning import RealInputs, plan_of
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import Case, Shapes
from onnxfuse.verification.localize.anchors import anchored
from onnxfuse.verification.localize.bisect import (
    CASES,
    ExaminedWindow,
    as_it_ran,
    cases_to_bisect,
    examine,
    open_with_inputs,
)
from onnxfuse.verification.localize.partition import Segment, windows
from onnxfuse.verification.report.quantized_parts import QuantizedParts
from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.tolerance.error_budget import ties_fault
from onnxfuse.verification.tolerance.quantized_outputs import rounds_inside


def leaves_parts(report: VerifyReport) -> bool:
    """Return whether the report on two models leaves open what their parts can show: outputs differ, and by no more
    than numbers."""
    if report.ok or report.problems or report.crash is not None or report.contract is not None or not report.rows:
        return False
    return not any(r.tolerance is not None or r.measure.unlike or r.measure.asked for r in report.rows)


def judged_by_parts(
    original: ModelProto,
    fused: ModelProto,
    report: VerifyReport,
    *,
    inputs: Sequence[RealInputs] | None = None,
    seeds: Sequence[int] = (0,),
    shapes: Shapes | None = None,
    progress: Progress = silent,
) -> VerifyReport:
    """Return `report` with the finding about the parts, on the cases that `bisect` would examine.

    At least one of them is; the time limit of the report leaves the last ones out. The report is returned unchanged if
    the original does not round inside.
    """
    if not rounds_inside(original):
        return report
    plan = [] if inputs is None else plan_of(input_specs(original), inputs, seeds, shapes)
    cases = {n: c.made or plan[n] for n, c in enumerate(report.cases) if not c.note}
    numbered = [(n, cases[n]) for n in _telling(report, cases)]
    parts = _examined(original, fused, report, numbered, progress)
    # What parts decide, the table shows as both models run.
    rows = report.rows if parts.faults else tuple(replace(r, measure=r.as_run or r.measure) for r in report.rows)
    return replace(report, rows=rows, parts=parts, problems=(*report.problems, *parts.faults))


def _telling(report: VerifyReport, cases: Mapping[int, Case]) -> list[int]:
    """Return the cases to examine, in order: the largest planned one, as a softmax of one element shows nothing, a
    smallest one in which an output moved, the smallest of each kind, and the largest of all."""
    planned = [n for n in cases if not report.cases[n].additional] or [*cases]
    largest, last = (
        max(some, key=lambda n: sum(math.prod(s) for s in cases[n].shapes.values())) for some in (planned, cases)
    )
    moved = {r.case for r in report.rows if r.verdict == "mismatch"}
    by_size = [*cases_to_bisect([cases[n] for n in sorted(moved)])[:1], *cases_to_bisect(list(cases.values()))]
    numbers = [n for case in by_size for n, one in cases.items() if one is case]
    return list(dict.fromkeys([*list(dict.fromkeys([largest, *numbers]))[: CASES - 1], last]))


@dataclass
class _Tally:
    """What the cases so far show of one part."""

    fault: str = ""
    right: bool = False
    why_undecided: str = ""
    apart: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By output: elements one step apart."""
    values: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By output with steps: elements."""

    def add(self, examined: ExaminedWindow) -> None:
        """Add one case."""
        fault = examined.fault
        if fault is not None:
            self.fault = self.fault or f"{fault.output}: {fault.why}"
        elif examined.report.ok:
            self.right = True
        else:
            self.why_undecided = examined.report.summary
        for row in examined.report.rows:
            if row.measure.grid:
                self.values[row.output] += row.measure.elements
                self.apart[row.output] += row.measure.apart

    def finish(self) -> None:
        """Judge the elements of all cases: each case by itself allows few elements one."""
        for output, apart in self.apart.items():
            why = ties_fault(apart, self.values[output])
            self.fault = self.fault or (f"{output}: {why}" if why else "")


def _are_numbers(feeds: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Return whether all floats are numbers: which integer NaN is rounded to, no standard says."""
    return not any(np.isnan(x.astype(np.float64)).any() for x in feeds.values() if x.dtype.kind in "fV")


def _examined(
    original: ModelProto,
    fused: ModelProto,
    report: VerifyReport,
    cases: Sequence[tuple[int, Case]],
    progress: Progress,
) -> QuantizedParts:
    fused, providers = as_it_ran(fused, report)
    fused = anchored(original, fused)
    every = windows(original, fused)
    session = open_with_inputs(original, every, providers)
    tallies: dict[Segment, _Tally] = {window: _Tally() for window in every}
    start, ran = time.perf_counter(), list[int]()
    for index, case in cases:
        spent = time.perf_counter() - start
        if ran and spent + report.cases[index].seconds > report.limits["seconds"]:
            break
        unexamined: dict[Segment, str] = {}
        for examined in examine(original, fused, case.make(), providers, every, session, unexamined, progress):
            if examined is not None and not _are_numbers(examined.feeds):
                tallies[examined.window].why_undecided = "some of the original's own values are NaN"
            elif examined is not None:
                tallies[examined.window].add(examined)
        for window, why in unexamined.items():
            tallies[window].why_undecided = why
        ran.append(index)
    for tally in tallies.values():
        tally.finish()
    return QuantizedParts(
        parts=len(every),
        cases=tuple(ran),
        left_out=tuple(n for n, _ in cases[len(ran) :]),
        values=sum(sum(t.values.values()) for t in tallies.values()),
        apart=sum(sum(t.apart.values()) for t in tallies.values()),
        faults=tuple(t.fault for t in tallies.values() if t.fault),
        undecided={w.outputs[0]: t.why_undecided for w, t in tallies.items() if not t.fault and not t.right},
    )
