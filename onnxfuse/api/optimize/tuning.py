"""Measured times of a model: read from a tuning file or from the model, measured on request, and reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from onnxfuse.api.request.files import writable
from onnxfuse.api.request.model_source import Model, Origin, path_or_proto
from onnxfuse.api.request.options import Options, TuningOptions
from onnxfuse.cuda.dispatch import measurements as times
from onnxfuse.cuda.dispatch.measurements import MeasuredVariants, Timed
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.support.progress import Steps, silent

if TYPE_CHECKING:
    from onnxfuse.measure.tune import Decided, Tuned

VERDICTS = {"fused": "kernel", "library": "library's op", "split": "other rules", "alone": "left alone"}


def tune(model: Model, tuning: TuningOptions, options: Options | None = None, progress: Steps = silent) -> "Tuned":
    """Return the measurements of the model and the decisions that follow; the model is not changed."""
    chosen = options or Options()
    check(tuning)
    return find(Origin(path_or_proto(model), chosen.strict_fp32).fresh(), tuning, chosen.chosen(), progress)


def check(options: TuningOptions) -> None:
    """Raise ModelError if the times are to be stored in a file that cannot be written."""
    if options.measure:
        writable(options.file)


def find(model: onnx.ModelProto, options: TuningOptions, rules: Sequence[Rule], progress: Steps = silent) -> "Tuned":
    """Return the measurements of `model`; if it is to be measured they are complete, and the file has them.

    The file is written after each measurement, so that an interrupted run can be resumed.
    """
    from onnxfuse.measure import tune as tuning  # ONNX Runtime is imported only when needed.

    sizes = tuple(dict(one) for one in options.sizes)
    if not options.measure:
        return tuning.reuse(model, rules, times.read(options.file), sizes, progress)
    book = times.read(options.file) if options.file.exists() else {}

    def keep(measured: times.Book) -> None:
        times.write(options.file, {**book, **measured})

    tuned = tuning.tune(model, rules, book, sizes or ({},), None, progress, keep)
    keep(tuned.book)
    return tuned


def carried(model: onnx.ModelProto, rules: Sequence[Rule], progress: Steps = silent) -> "Tuned | None":
    """Return the measurements that the model itself carries; None if there are none."""
    book = times.of_model(model)
    if not book:
        return None
    from onnxfuse.measure import tune as tuning

    return tuning.reuse(model, rules, book, (), progress)


def facts(tuned: "Tuned", file: Path | None) -> dict[str, Any]:
    """Return the decisions as plain data for JSON."""
    decisions = tuned.decisions
    return {
        "file": None if file is None else str(file),
        "machines": [str(m) for m in tuned.book],
        "note": tuned.note,
        "measured_now": len(decisions.new),
        "unmeasured_places": decisions.unmeasured,
        "decisions": [
            {
                "verdict": d.verdict,
                "places": d.places,
                "measured": [{**times.entry(m), "fastest": {b.kind: b.name for b in fastest(m)}} for m in d.measured],
            }
            for d in decisions.decided
        ],
    }


def fastest(measured: MeasuredVariants) -> list[Timed]:
    """Return the fastest candidate of each kind, fastest kind first."""
    best = [b for kind in VERDICTS if (b := measured.best(kind)) is not None]  # type: ignore[arg-type]  # the keys are kinds
    return sorted(best, key=lambda b: b.microseconds or 0)


@dataclass(frozen=True)
class TuningCounts:
    """Number of decisions per outcome."""

    by: dict[str, int]
    """Counts by verdict."""
    variants: int
    """Fused ops that use another variant than the plan's own."""


def counts(tuned: "Tuned") -> TuningCounts:
    """Count the decisions by outcome."""
    decided = tuned.decisions.decided
    other = sum(d.verdict == "fused" and any(times.variant(m) is not None for m in d.measured) for d in decided)
    return TuningCounts({v: sum(d.verdict == v for d in decided) for v in VERDICTS}, other)


def rows(decided: "Decided", *, everything: bool) -> list[tuple[str, ...]]:
    """Return a decision and its times as table rows: the fastest candidate of each kind, or every candidate."""
    table_rows: list[tuple[str, ...]] = []
    for measured in decided.measured:
        candidates = (
            sorted(measured.candidates, key=lambda c: c.microseconds or 1e9) if everything else fastest(measured)
        )
        times_text = "\n".join(_time_text(c) for c in candidates)
        nodes, shapes = " + ".join(measured.nodes), times.extents(measured.shapes)
        table_rows.append((str(decided.places), measured.rule, nodes, shapes, VERDICTS[decided.verdict], times_text))
    return table_rows


def _time_text(candidate: Timed) -> str:
    if candidate.microseconds is None:
        return f"{candidate.name}: {candidate.failed}"
    return f"{candidate.microseconds:.1f} {candidate.name}"
