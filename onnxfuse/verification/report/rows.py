"""Rows of a `verify` report: an output in a case, a case, a fused op."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import plural
from onnxfuse.verification.inputs.inputs import Case
from onnxfuse.verification.run.tensors import element
from onnxfuse.verification.tolerance.lower_precision import Judged
from onnxfuse.verification.tolerance.output_error import TOO_FAR, Measure
from onnxfuse.verification.tolerance.user_tolerances import Tolerated

Verdict = Literal["ok", "mismatch", "undecided", "blunt"]

FLOATS = ("float", "bfloat")
"""Name prefixes of floating-point types."""

LEFT_OUT = "left out: "
"""Note prefix of a case that was never run on the original."""

SEPARATE_FIELDS = ("broken", "unlike", "asked", "difference")
"""Fields of a measure that `fault` describes in words, or that have a key of their own."""


@dataclass(frozen=True)
class OutputRow:
    """One output in one case."""

    output: str
    dtype: str
    case: int
    """Index into `Report.cases`."""
    measure: Measure

    tolerance: Tolerated | None = None
    """Used share of the tolerance given for this output; None if the error budget applies."""

    contract: Judged | None = None
    """Judgment by the lower-precision contract; None if the file is not in lower precision."""

    part_of: str = ""
    """The output of the model that contains this tensor, if that is a sequence, a map or an optional."""

    as_run: Measure | None = field(default=None, repr=False)
    """Measure beside the original with ONNX Runtime's optimizations, if these break it."""

    keys: tuple[str | int, ...] = field(default=(), repr=False)
    """Keys of the elements, if they come from a map."""

    @property
    def fault(self) -> str:
        """What is wrong, in words; empty if nothing is."""
        if self.contract is not None:
            return self.contract.fault
        if self.tolerance is None or self.measure.unlike:
            return self.measure.fault
        return self.measure.fault if self.measure.asked else self.tolerance.fault

    @property
    def verdict(self) -> Verdict:
        """`mismatch`; `undecided` if nothing could be judged; `blunt` if a wrong weight would hide; else `ok`."""
        m = self.measure
        if self.fault:
            return "mismatch"
        if self.tolerance is not None or self.contract is not None:
            floats = self.dtype.startswith(FLOATS)
            judged_elements = m.compared if self.contract is not None else m.difference.finite if floats else m.elements
            return "ok" if judged_elements or (m.identical and not m.elements) else "undecided"
        if m.undecided:
            return "undecided"
        return "blunt" if m.blunt else "ok"

    @property
    def sharp(self) -> bool:
        """Whether the output is right here, and a wrong weight would have been visible."""
        judged_otherwise = self.tolerance is not None or self.contract is not None
        return self.verdict == "ok" and (judged_otherwise or self.measure.telling)

    @property
    def owner(self) -> str:
        """The model output: this one, or the one that contains it."""
        return self.part_of or self.output

    @property
    def element(self) -> str:
        """The element at `measure.where`, as a user would write it: `y[0, 3]`, of a map `y["cat"]`."""
        return element(self.output, self.measure.where, self.keys)

    @property
    def own_share(self) -> str:
        """The original's own error in words."""
        m = self.measure
        if not m.scale:
            return f"the original's own error is {m.own:.2g} where the truth is 0"
        digits = 0 if m.own > TOO_FAR * m.scale else 1
        return f"the original's own error is {m.own / m.scale:.{digits}%} of its largest value"

    @property
    def why_undecided(self) -> str:
        """Why nothing could be judged, in words; empty if something was."""
        m = self.measure
        if self.verdict != "undecided":
            return ""
        if m.empty:
            return "no element was given"
        if m.unsure:
            return "the reference is not trusted here, and not every operator could be checked"
        if m.compared and self.judged_by == "budget":
            return self.own_share
        if self.judged_by == "budget" and not math.isfinite(m.original):
            location = f" at {list(m.where)}" * bool(m.where)
            return f"the original is finite nowhere that the truth is: {m.original:g}{location}, not {m.truth:g}"
        floats = self.dtype.startswith(FLOATS)
        return "no element is finite" if floats else "the original itself differs from the truth, or has ties"

    @property
    def judged_by(self) -> str:
        """`contract`, `tolerance` or `budget`."""
        if self.contract is not None:
            return "contract"
        return "budget" if self.tolerance is None else "tolerance"

    @property
    def severity(self) -> float:
        """Used share of the budget or tolerance; above 1 is a fault."""
        if self.contract is not None:
            return self.contract.severity
        return self.measure.severity if self.tolerance is None else self.tolerance.worst

    def as_dict(self) -> dict[str, Any]:
        """Return the row's facts for JSON; numbers that are not finite become strings."""
        m = self.measure
        facts = {f.name: getattr(m, f.name) for f in fields(Measure) if f.name not in SEPARATE_FIELDS}
        headline = {name: getattr(m.difference, name) for name in ("max_abs", "max_rel", "cosine", "rtol", "atol")}
        row = {
            "output": self.output,
            "part_of": self.part_of,
            "element": self.element,
            "dtype": self.dtype,
            "case": self.case,
            "verdict": self.verdict,
            "fault": self.fault,
            "judged_by": self.judged_by,
            **headline,
            **facts,
            "budget": m.budget,
            "typical_budget": m.typical_budget,
            "tolerance": None if self.tolerance is None else asdict(self.tolerance),
            "difference": asdict(m.difference),
            "contract": None if self.contract is None else asdict(self.contract),
        }
        if self.contract is not None:
            row |= {"error": self.contract.error, "budget": self.contract.allowed, "own": self.contract.own}
        return {key: in_json(value) for key, value in row.items()}


@dataclass(frozen=True)
class CaseRow:
    """One set of inputs that was run."""

    name: str
    seed: int | None
    """None for real inputs."""
    shapes: Mapping[str, tuple[int, ...]]
    seconds: float
    note: str = ""
    """Why it was skipped, or what went wrong."""
    additional: bool = False
    """Whether it is one of the large sizes and values or searched inputs, which run after the planned cases."""
    made: Case | None = field(default=None, compare=False, repr=False)
    """Recipe that regenerates the inputs, if they were generated."""

    @classmethod
    def of(cls, case: Case, seconds: float, note: str) -> "CaseRow":
        """Return the row of a case."""
        made = case if case.generated else None
        return cls(case.name, case.seed, dict(case.shapes), seconds, note, made=made)

    def as_dict(self) -> dict[str, Any]:
        """Return the case's facts for JSON."""
        shapes = {n: list(s) for n, s in self.shapes.items()}
        return {"name": self.name, "seed": self.seed, "shapes": shapes, "seconds": self.seconds, "note": self.note}


def none_ran(cases: Sequence[CaseRow]) -> UsageError:
    """Return the error of a verification in which the original accepted no case, or there was none."""
    return UsageError(
        f"the original runs on none of the inputs: {cases[-1].note}" if cases else "no inputs to run",
        "Give sizes for its dynamic dimensions (--shape name=1,7), or give real inputs (--inputs).",
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
    """Why it runs as a function."""
    calls: int
    """Number of calls served by the kernel during the verification; one without elements launches nothing."""
    launches: int
    """Number of kernel launches during the verification."""

    def as_dict(self) -> dict[str, Any]:
        """Return the op's facts for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def ran_as(kernels: Sequence[KernelRow]) -> str:
    """Return how many fused ops ran as kernels, in a few words; empty if none ran as its body."""
    total, bodies, ran = (
        sum(k.nodes for k in kernels if k.runs_as in kinds)
        for kinds in (("kernel", "onnxruntime", "body"), ("body",), ("kernel",))
    )
    if not bodies:
        return ""
    return "bodies only" if bodies == total else f"kernels ran {ran} of {plural(total, 'op')}"


def in_json(value: Any) -> Any:
    """Return a value with non-finite numbers as strings."""
    if isinstance(value, Mapping):
        return {key: in_json(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [in_json(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
