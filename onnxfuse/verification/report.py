"""What a verification found: per output and case the measure, and whether the promise held."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from onnxfuse.verification.budget import Measure


@dataclass(frozen=True)
class OutputRow:
    """One output in one case."""

    output: str
    dtype: str
    case: int
    """Position in `Report.cases`."""
    measure: Measure

    @property
    def verdict(self) -> str:
        """`mismatch`; `undecided` where nothing could be judged; else `ok`."""
        if self.measure.fault:
            return "mismatch"
        if self.measure.elements and (not self.measure.compared or self.measure.blunt):
            return "undecided"
        return "ok"

    def as_dict(self) -> dict[str, Any]:
        """Return the row's facts for JSON; numbers that are not finite become strings."""
        facts = {f.name: _json(getattr(self.measure, f.name)) for f in fields(Measure) if f.name != "broken"}
        judged = {
            "budget": _json(self.measure.budget),
            "typical_budget": _json(self.measure.typical_budget),
            "fault": self.measure.fault,
        }
        return {
            "output": self.output,
            "dtype": self.dtype,
            "case": self.case,
            "verdict": self.verdict,
            **facts,
            **judged,
        }


@dataclass(frozen=True)
class CaseRow:
    """One set of inputs that was run."""

    name: str
    seed: int | None
    """None for real inputs."""
    shapes: Mapping[str, tuple[int, ...]]
    seconds: float
    note: str = ""
    """Why it was left out, or what went wrong."""

    def as_dict(self) -> dict[str, Any]:
        """Return the case's facts for JSON."""
        shapes = {n: list(s) for n, s in self.shapes.items()}
        return {"name": self.name, "seed": self.seed, "shapes": shapes, "seconds": self.seconds, "note": self.note}


@dataclass(frozen=True)
class KernelRow:
    """One fused op of the fused model, and how it ran."""

    op: str
    rule: str
    nodes: int
    runs_as: str
    """`kernel`, `library` or `function`."""
    reason: str
    """Why as a function."""
    launches: int
    """Launches of its kernel during the verification."""

    def as_dict(self) -> dict[str, Any]:
        """Return the op's facts for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Report:
    """The result of `verify`. `ok` is the verdict."""

    provider: str
    """The execution provider that both models ran on."""
    truth: str
    """`float64` or `float32`; empty if nothing was run."""
    truth_how: str
    """Who computed the truth."""
    truth_why: str
    """Why it is not float64."""
    cases: tuple[CaseRow, ...]
    rows: tuple[OutputRow, ...]
    """Each output in each case that was compared."""
    kernels: tuple[KernelRow, ...]
    problems: tuple[str, ...]
    """What is wrong besides numbers: inputs and outputs that differ, kernels that did not run, a run that failed."""
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the promise held: no problem, every output right in every case and really judged in one at least."""
        return not self.problems and bool(self.rows) and all(r.verdict == "ok" for r in self.outputs)

    @property
    def outputs(self) -> tuple[OutputRow, ...]:
        """The worst case of each output, in the order of the model's outputs: a mismatch, else the best used budget.

        A case in which nothing could be judged stands only for an output that has no better one.
        """
        by_name: dict[str, list[OutputRow]] = {}
        for row in self.rows:
            by_name.setdefault(row.output, []).append(row)
        return tuple(max(rows, key=_badness) for rows in by_name.values())

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        run = sum(not c.note for c in self.cases)
        if self.ok:
            return f"same within the error budget: {_count(len(self.outputs), 'output')}, {_count(run, 'case')}"
        wrong = [r.output for r in self.outputs if r.verdict == "mismatch"]
        open_ = [r.output for r in self.outputs if r.verdict == "undecided"]
        parts = [f"{', '.join(wrong)} out of budget"] if wrong else []
        parts += [f"{', '.join(open_)} could not be judged"] if open_ else []
        parts += [_count(len(self.problems), "problem")] if self.problems else []
        return f"not the same: {'; '.join(parts) or 'nothing was compared'}"

    def as_dict(self) -> dict[str, Any]:
        """Return every fact for JSON."""
        return {
            "ok": self.ok,
            "summary": self.summary,
            "provider": self.provider,
            "truth": {"kind": self.truth, "how": self.truth_how, "why": self.truth_why},
            "problems": list(self.problems),
            "outputs": [r.as_dict() for r in self.outputs],
            "rows": [r.as_dict() for r in self.rows],
            "cases": [c.as_dict() for c in self.cases],
            "kernels": [k.as_dict() for k in self.kernels],
            "seconds": self.seconds,
        }


def _badness(row: OutputRow) -> tuple[int, float]:
    return ({"undecided": 0, "ok": 1, "mismatch": 2}[row.verdict], row.measure.severity)


def _json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
