"""What a verification found: per output and case the measure, and whether the promise held.

`Report.as_dict()` is what `--json` prints and other tools read. Its `schema` is a number that grows when a key goes or
changes its meaning; new keys alone leave it.

| key | value |
|---|---|
| schema, ok, summary, seconds | the form of this; the verdict, in one line too; how long it took |
| provider, fused_provider | ONNX Runtime's provider of the original, of the fused model |
| truth | `kind` (float64, float32), `how` it was computed, `why` not in float64 |
| tf32 | whether float32 outputs pass only because the session may round the factors of products to TF32 |
| half | whether outputs pass only beside the original with each half value rounded to its type, as ONNX defines it |
| wide | `compared` where a model of half types was compared in float32, too; why not, empty where it holds none |
| without_tf32 | why the CUDA sessions ran with `use_tf32` 0; empty where they did not |
| problems | what is wrong besides numbers, one sentence each |
| outputs | the worst row of each output; `rows`: each output in each case |
| a row | `output`, `dtype`, `case` (position in `cases`), `verdict` (ok, mismatch, undecided), `fault` in words |
| | `judged_by` (budget, tolerance, contract), `tolerance` (null, or the fields of `tolerance.Tolerated`) |
| | `contract` (null, or the fields of `lower_precision.Judged`: error, own and budget are relative RMS then) |
| | the numbers of `Measure`, its `budget` and `typical_budget` |
| | `difference` (the fields of `metrics.Difference`), and max_abs, max_rel, cosine, rtol, atol out of it |
| undecided, unverified | positions of cases in which an output could not be judged; outputs of which most could not |
| cases | `name`, `seed` (null for real inputs), `shapes`, `seconds`, `note` (why it was left out) |
| kernels | per fused op: `op`, `rule`, `nodes`, `runs_as` (kernel, library, function), `reason`, `calls`, `launches` |
| never_ran | bodies of If, Loop and Scan that no case entered |
| searched | values of dynamic dimensions that were searched for until the original ran |
| limits | what it might cost: `seconds` for the cases, bytes of `memory` for the values of one |
| precision | null, or how the file was converted to lower precision: then a row's `contract` judges it |
| crash | null, or the fields of `finding.CrashSite`: which op ended the process, or broke the GPU |
| bisection | null, or the fields of `finding.Finding`: what `--bisect` found |

Numbers that are not finite are strings: "inf", "-inf", "nan".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from onnxfuse.model.counted import counted
from onnxfuse.model.errors import UsageError
from onnxfuse.model.lowered import Lowered
from onnxfuse.model.tabled import Table, Tabled
from onnxfuse.verification.finding import CrashSite, Finding
from onnxfuse.verification.inputs import Case
from onnxfuse.verification.lower_precision import Judged
from onnxfuse.verification.measured import Measure
from onnxfuse.verification.tolerance import Tolerated

SCHEMA = 1
"""The form of `Report.as_dict()`, told at the top of this file."""

LEFT_OUT = "left out: "
"""How the note of a case begins that was not run because of what it would cost."""

BODIES_TOLD = 3
"""Bodies that never ran and are named in the verdict; the report has all."""

MOSTLY = 0.5
"""An output that could not be judged in more than this share of the kinds of cases has not been verified."""

WITHIN = {"contract": "contract for lower precision", "tolerance": "tolerance", "budget": "error budget"}
"""What an output holds, by how it is judged."""

NOT_TOLD = ("broken", "unlike", "asked", "difference")
"""Fields of a measure that `fault` tells in words, or that have a key of their own."""


@dataclass(frozen=True)
class OutputRow:
    """One output in one case."""

    output: str
    dtype: str
    case: int
    """Position in `Report.cases`."""
    measure: Measure

    tolerance: Tolerated | None = None
    """How far a tolerance is used that was given for this output; None where the error budget judges it."""

    contract: Judged | None = None
    """What the output is worth by the contract of lower precision; None where the file is not in one."""

    @property
    def fault(self) -> str:
        """What is wrong, in words; empty where nothing is."""
        if self.contract is not None:
            return self.contract.fault
        if self.tolerance is None or self.measure.unlike:
            return self.measure.fault
        return self.measure.fault if self.measure.asked else self.tolerance.fault

    @property
    def verdict(self) -> str:
        """`mismatch`; `undecided` where nothing could be judged; else `ok`."""
        if self.fault:
            return "mismatch"
        if self.tolerance is None and self.contract is None and self.measure.undecided:
            return "undecided"
        return "ok"

    @property
    def why_undecided(self) -> str:
        """Why nothing could be judged, in words; empty where something was."""
        m = self.measure
        if self.verdict != "undecided":
            return ""
        if m.unsure:
            return "the truth is not to be believed here, and not every operator could be asked about"
        if m.compared:
            share = f"{m.own / m.scale:.0%} of its largest value" if m.scale else f"{m.own:.2g} where the truth is 0"
            return f"the original's own error is {share}"
        floats = self.dtype.startswith(("float", "bfloat"))
        if not math.isfinite(m.original):
            place = f" at {list(m.where)}" * bool(m.where)
            return f"the original is finite nowhere that the truth is: {m.original:g}{place}, not {m.truth:g}"
        return "no element is finite" if floats else "the original itself differs from the truth, or has ties"

    @property
    def judged_by(self) -> str:
        """`contract`, `tolerance` or `budget`."""
        if self.contract is not None:
            return "contract"
        return "budget" if self.tolerance is None else "tolerance"

    @property
    def severity(self) -> float:
        """How much of the budget or tolerance is used; above 1 is a fault."""
        if self.contract is not None:
            return self.contract.severity
        return self.measure.severity if self.tolerance is None else self.tolerance.worst

    def as_dict(self) -> dict[str, Any]:
        """Return the row's facts for JSON; numbers that are not finite become strings."""
        m = self.measure
        facts = {f.name: getattr(m, f.name) for f in fields(Measure) if f.name not in NOT_TOLD}
        told = {name: getattr(m.difference, name) for name in ("max_abs", "max_rel", "cosine", "rtol", "atol")}
        row = {
            "output": self.output,
            "dtype": self.dtype,
            "case": self.case,
            "verdict": self.verdict,
            "fault": self.fault,
            "judged_by": self.judged_by,
            **told,
            **facts,
            "budget": m.budget,
            "typical_budget": m.typical_budget,
            "tolerance": None if self.tolerance is None else asdict(self.tolerance),
            "difference": asdict(m.difference),
            "contract": None if self.contract is None else asdict(self.contract),
        }
        if self.contract is not None:
            row |= {"error": self.contract.error, "budget": self.contract.allowed, "own": self.contract.own}
        return {key: _json(value) for key, value in row.items()}


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
    made: Case | None = field(default=None, compare=False, repr=False)
    """What makes the inputs again, where they were made up."""

    def as_dict(self) -> dict[str, Any]:
        """Return the case's facts for JSON."""
        shapes = {n: list(s) for n, s in self.shapes.items()}
        return {"name": self.name, "seed": self.seed, "shapes": shapes, "seconds": self.seconds, "note": self.note}


def none_ran(cases: Sequence[CaseRow]) -> UsageError:
    """Return the error of a verification in which the original took none of the cases, or there was none."""
    return UsageError(
        f"the original runs on none of the inputs: {cases[-1].note}" if cases else "no inputs to run",
        "Say what its dynamic dimensions are (--shape name=1,7), or give real inputs (--inputs).",
    )


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
    calls: int
    """How often it was served as a kernel during the verification; without elements that is no launch."""
    launches: int
    """Launches of its kernels during the verification."""

    def as_dict(self) -> dict[str, Any]:
        """Return the op's facts for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, repr=False)
class Report(Tabled):
    """The result of `verify`. `ok` is the verdict."""

    provider: str
    """The execution provider that the original ran on; and the fused model, unless `fused_provider` is another."""
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
    fused_provider: str = ""
    """The execution provider of the fused model where it is another one."""
    tf32: bool = False
    """Whether float32 outputs were judged by what TF32 products permit: on CUDA, where nothing else holds."""
    half: bool = False
    """Whether outputs were judged beside the original with each half value rounded to its type, as ONNX defines its
    operators: on the CPU, where ONNX Runtime keeps float32 between them and nothing else holds."""
    wide: str = ""
    """`compared` where the models hold a half type and were compared in float32, too; or why not, if they hold one."""
    without_tf32: str = ""
    """Why the CUDA sessions ran with `use_tf32` 0, which rounds no float32 product; empty where they did not."""
    never_ran: tuple[str, ...] = ()
    """Bodies of If, Loop and Scan of the original that no case entered: nothing is known about them."""
    searched: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Values of dynamic dimensions that were searched for, because the original took none of the usual small ones."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """What it might cost: `seconds` for the cases, bytes of `memory` for the values of one."""
    crash: CrashSite | None = None
    """Where the model crashed that was run; None where nothing did. It is among the problems, too."""
    bisection: Finding | None = None
    """What `bisect` found; None where it was not asked for, or nothing was wrong."""
    contract: Lowered | None = None
    """How the file was converted to lower precision; None where it was not, and the error budget judges."""

    @property
    def ok(self) -> bool:
        """Whether the promise held: no problem, every output right in every case, and most cases judged."""
        right = bool(self.rows) and all(r.verdict == "ok" for r in self.outputs)
        return right and not self.problems and not self.unverified

    @property
    def undecided(self) -> tuple[int, ...]:
        """Positions of the cases in which an output could not be judged."""
        return tuple(sorted({r.case for r in self.rows if r.verdict == "undecided"}))

    @property
    def unverified(self) -> tuple[str, ...]:
        """Outputs that could not be judged in more than MOSTLY of the kinds of cases, at their shapes.

        Cases that differ by their seed alone are one: doubtful ones are run with more seeds, and would count more.
        """
        judged: dict[str, dict[tuple[Any, ...], bool]] = {}
        for row in self.rows:
            case = self.cases[row.case]
            kinds = judged.setdefault(row.output, {})
            kind = (case.name, *case.shapes.items())
            kinds[kind] = kinds.get(kind, False) or row.verdict != "undecided"
        open_ = {name: sum(not known for known in kinds.values()) for name, kinds in judged.items()}
        return tuple(name for name, kinds in judged.items() if open_[name] > MOSTLY * len(kinds))

    def table(self) -> Table:
        """Return the worst case of each output: its error against the truth, and what it may be."""
        rows = [
            (r.output, r.dtype, f"{r.measure.error:.2g}", f"{r.measure.budget:.2g}", self.cases[r.case].name, r.verdict)
            for r in self.outputs
        ]
        return Table(
            f"{'ok' if self.ok else 'MISMATCH'}: {self.summary}",
            ("output", "type", "error", "allowed", "worst case", "verdict"), rows,
        )  # fmt: skip

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
            within = {WITHIN[r.judged_by] for r in self.outputs}
            cases = counted(run, "case")
            what = (
                f"{counted(len(self.outputs), 'output')}, {f'{run - len(self.undecided)} of ' * bool(self.undecided)}"
            )
            left_out = self._undecided_text("; ") + self._empty_text() + self._left_out_text()
            same = "same" if self.contract is None else f"in {self.contract.precision}, as near the truth as asked,"
            return f"{same} within the {' and the '.join(sorted(within))}: {what}{cases}{left_out}"
        if self.crash is not None:
            return self.crash.text
        wrong = [r.output for r in self.outputs if r.verdict == "mismatch"]
        parts = [f"{', '.join(wrong)} out of budget"] if wrong else []
        parts += [f"{', '.join(self.unverified)} could not be judged"] if self.unverified else []
        parts += [counted(len(self.problems), "problem")] if self.problems else []
        known = "not the same" if wrong or self.problems else "not shown to be the same"
        return (
            f"{known}: {'; '.join(parts) or 'nothing was compared'}{self._undecided_text(': ')}{self._left_out_text()}"
        )

    def _empty_text(self) -> str:
        """Return which outputs had no element in any case; empty where all had."""
        had = {r.output for r in self.rows if r.measure.elements}
        empty = [r.output for r in self.outputs if r.output not in had]
        return f"; nothing of {', '.join(empty)} was compared: no case gave an element of it" if empty else ""

    def _left_out_text(self) -> str:
        notes = [c.note for c in self.cases if c.note.startswith(LEFT_OUT)]
        text = f"; {counted(len(notes), 'case')} {notes[0]}" if notes else ""
        more = f" and {len(self.never_ran) - BODIES_TOLD} more" * (len(self.never_ran) > BODIES_TOLD)
        return text + (f"; never ran: {', '.join(self.never_ran[:BODIES_TOLD])}{more}" if self.never_ran else "")

    def _undecided_text(self, before: str) -> str:
        """Return how many cases could not be judged and why, after `before`; empty where all were."""
        if not self.undecided:
            return ""
        why = next(r.why_undecided for r in self.rows if r.verdict == "undecided")
        ran = sum(not c.note for c in self.cases)
        return f"{before}{len(self.undecided)} of {counted(ran, 'case')} could not be judged: {why}"

    def as_dict(self) -> dict[str, Any]:
        """Return every fact for JSON."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "summary": self.summary,
            "provider": self.provider,
            "fused_provider": self.fused_provider or self.provider,
            "truth": {"kind": self.truth, "how": self.truth_how, "why": self.truth_why},
            "tf32": self.tf32,
            "half": self.half,
            "wide": self.wide,
            "without_tf32": self.without_tf32,
            "problems": list(self.problems),
            "outputs": [r.as_dict() for r in self.outputs],
            "rows": [r.as_dict() for r in self.rows],
            "cases": [c.as_dict() for c in self.cases],
            "undecided": list(self.undecided),
            "unverified": list(self.unverified),
            "kernels": [k.as_dict() for k in self.kernels],
            "never_ran": list(self.never_ran),
            "searched": {name: list(sizes) for name, sizes in self.searched.items()},
            "limits": dict(self.limits),
            "crash": None if self.crash is None else self.crash.as_dict(),
            "bisection": None if self.bisection is None else self.bisection.as_dict(),
            "precision": None if self.contract is None else self.contract.as_dict(),
            "seconds": self.seconds,
        }


def _badness(row: OutputRow) -> tuple[int, float]:
    return ({"undecided": 0, "ok": 1, "mismatch": 2}[row.verdict], row.severity)


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _json(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_json(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
