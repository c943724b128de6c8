"""The measurements of one model and the decisions by them, for `optimize`, for tables and as plain data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto

from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.measurements import Book, Kind, MeasuredVariants, Timed
from onnxfuse.fusion.region.choices import Choices
from onnxfuse.measure.tune.decide import Decided, Decisions, Sizes, decide
from onnxfuse.measure.tune.screen import candidates, summary
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.support.screen import Blocks, Screen

VERDICTS: dict[Kind, str] = {
    "fused": "kernel", "library": "library's op", "split": "other rules", "alone": "left alone",
}  # fmt: skip
"""Verdicts as tables show them."""


@dataclass(frozen=True)
class TuningCounts:
    """Number of decisions per outcome."""

    by: dict[Kind, int]
    """Counts by verdict."""
    variants: int
    """Fused ops that use another variant than the plan's own."""


@dataclass(frozen=True, repr=False)
class Tuned(Screen):
    """Measurements of one model, and the decisions that follow."""

    rules: tuple[Rule, ...]
    sizes: Sizes
    decisions: Decisions
    book: Book
    """All measurements valid here, including new ones."""
    note: str = ""
    """In one line, which parts of a file are not used and why."""

    def choices(self, model: ModelProto, rules: Sequence[Rule]) -> Choices:
        """Return the choices that the pipeline needs to optimize `model` by `rules`, all or a subset."""
        if tuple(rules) == self.rules:
            return self.decisions.choices
        return decide(model, rules, measurements.pooled(self.book), self.sizes).choices

    def attach(self, model: ModelProto) -> None:
        """Attach the measurements that decided to the optimized model: sessions read the variants, `explain`
        all of it."""
        measurements.attach(
            model, measurements.about(self.book, {m.key for d in self.decisions.decided for m in d.measured})
        )

    def counts(self) -> TuningCounts:
        """Count the decisions by outcome."""
        decided = self.decisions.decided
        other = sum(
            d.verdict == "fused" and any(measurements.variant(m) is not None for m in d.measured) for d in decided
        )
        return TuningCounts({v: sum(d.verdict == v for d in decided) for v in VERDICTS}, other)

    def screen(self) -> Blocks:
        """Return the decisions, each with the fastest candidate of its kinds and the microseconds."""
        yield from summary(self)
        yield from candidates(self)

    def rows(self, *, everything: bool) -> list[tuple[str, ...]]:
        """Return the decisions as table rows: the number of nodes, the rule, the nodes, their shapes, the decision, and
        a line for the fastest candidate of each kind, or for every candidate."""
        return [row for one in self.decisions.decided for row in _rows(one, everything=everything)]

    def as_dict(self) -> dict[str, Any]:
        """Return the decisions as plain data for JSON."""
        decisions = self.decisions
        return {
            "machines": [str(m) for m in self.book],
            "note": self.note,
            "measured_now": len(decisions.new),
            "unmeasured_places": decisions.unmeasured,
            "decisions": [
                {
                    "verdict": d.verdict,
                    "places": d.places,
                    "measured": [
                        {**measurements.entry(m), "fastest": {b.kind: b.name for b in fastest(m)}} for m in d.measured
                    ],
                }
                for d in decisions.decided
            ],
        }


def fastest(measured: MeasuredVariants) -> list[Timed]:
    """Return the fastest candidate of each kind, fastest kind first."""
    best = [b for kind in VERDICTS if (b := measured.best(kind)) is not None]
    return sorted(best, key=lambda b: b.microseconds or 0)


def _rows(decided: Decided, *, everything: bool) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for measured in decided.measured:
        candidates = (
            sorted(measured.candidates, key=lambda c: c.microseconds or 1e9) if everything else fastest(measured)
        )
        times = "\n".join(_time_text(c) for c in candidates)
        nodes, shapes = " + ".join(measured.nodes), measurements.extents(measured.shapes)
        rows.append((str(decided.places), measured.rule, nodes, shapes, VERDICTS[decided.verdict], times))
    return rows


def _time_text(candidate: Timed) -> str:
    if candidate.microseconds is None:
        return f"{candidate.name}: {candidate.failed}"
    return f"{candidate.microseconds:.1f} {candidate.name}"
