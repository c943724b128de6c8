"""What was measured of a model: found in a file or in the model, measured where that is asked for, and told."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from onnxfuse.api.request.files import writable
from onnxfuse.api.request.model_source import Model, Origin, path_or_proto
from onnxfuse.api.request.options import Options, Progress, TuningOptions, silent
from onnxfuse.cuda.planning import measurements as times
from onnxfuse.cuda.planning.launch_plan import DEFAULT
from onnxfuse.cuda.planning.measurements import MeasuredVariants, Timed
from onnxfuse.rules.language.rule_file import Rule

if TYPE_CHECKING:
    from onnxfuse.tuning import Decided, Tuned

VERDICTS = {"fused": "kernel", "library": "library's op", "split": "other rules", "alone": "left alone"}


def tune(model: Model, tuning: TuningOptions, options: Options | None = None, progress: Progress = silent) -> "Tuned":
    """Return what is known of the model and how it decides; the model stays as it is."""
    chosen = options or Options()
    check(tuning)
    return find(Origin(path_or_proto(model), chosen.strict_fp32).fresh(), tuning, chosen.chosen(), progress)


def check(asked: TuningOptions) -> None:
    """Raise ModelError where the times are to be kept in a file that cannot be written."""
    if asked.measure:
        writable(asked.file)


def find(model: onnx.ModelProto, asked: TuningOptions, rules: Sequence[Rule], progress: Progress = silent) -> "Tuned":
    """Return what is known of `model`; where it is to be measured that is all, and the file holds it.

    The file is written after each measurement: what was interrupted goes on where it stopped.
    """
    from onnxfuse import tuning  # ONNX Runtime is imported where it is needed.

    sizes = tuple(dict(one) for one in asked.sizes)
    if not asked.measure:
        return tuning.reuse(model, rules, times.read(asked.file), sizes, progress)
    book = times.read(asked.file) if asked.file.exists() else {}

    def keep(measured: times.Book) -> None:
        times.write(asked.file, {**book, **measured})

    found = tuning.tune(model, rules, book, sizes or ({},), None, progress, keep)
    keep(found.book)
    return found


def carried(model: onnx.ModelProto, rules: Sequence[Rule], progress: Progress = silent) -> "Tuned | None":
    """Return what the model itself tells of what was measured of it; None where nothing ever was."""
    book = times.of_model(model)
    if not book:
        return None
    from onnxfuse import tuning

    return tuning.reuse(model, rules, book, (), progress)


def facts(tuned: "Tuned", file: Path | None) -> dict[str, Any]:
    """Return what was decided as plain data, for JSON."""
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
    """Return the fastest candidate of each kind, the fastest kind first."""
    best = [b for kind in VERDICTS if (b := measured.best(kind)) is not None]  # type: ignore[arg-type]  # the keys are kinds
    return sorted(best, key=lambda b: b.microseconds or 0)


@dataclass(frozen=True)
class TuningCounts:
    """How the places of a model were decided."""

    by: dict[str, int]
    """By verdict."""
    variants: int
    """Fused ops in another variant than the plan's own."""


def counts(tuned: "Tuned") -> TuningCounts:
    """Return how many places went which way."""
    decided = tuned.decisions.decided
    other = sum(d.verdict == "fused" and any(times.variant(m) != DEFAULT for m in d.measured) for d in decided)
    return TuningCounts({v: sum(d.verdict == v for d in decided) for v in VERDICTS}, other)


def rows(decided: "Decided", *, everything: bool) -> list[tuple[str, ...]]:
    """Return a decision with the times behind it as rows of a table: the fastest of each kind, or every candidate."""
    found: list[tuple[str, ...]] = []
    for measured in decided.measured:
        shown = sorted(measured.candidates, key=lambda c: c.microseconds or 1e9) if everything else fastest(measured)
        told = "\n".join(_told(c) for c in shown)
        nodes, shapes = " + ".join(measured.nodes), times.extents(measured.shapes)
        found.append((str(decided.places), measured.rule, nodes, shapes, VERDICTS[decided.verdict], told))
    return found


def _told(candidate: Timed) -> str:
    if candidate.microseconds is None:
        return f"{candidate.name}: {candidate.failed}"
    return f"{candidate.microseconds:.1f} {candidate.name}"
