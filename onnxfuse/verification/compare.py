"""Run two models on the same inputs and judge the second by the first's own error against truth."""

import math
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from onnxfuse import runtime
from onnxfuse.model import io
from onnxfuse.model.concrete_shapes import without_elements
from onnxfuse.model.errors import ModelError, UsageError
from onnxfuse.model.isolation import doing
from onnxfuse.model.types import UNKNOWN, ValueType, first_line, value_types
from onnxfuse.verification import budget, sessions
from onnxfuse.verification.branches import Bodies
from onnxfuse.verification.class_outputs import class_outputs
from onnxfuse.verification.inputs import Case, Shapes, input_specs, nudge
from onnxfuse.verification.limits import EVALUATIONS, Limits, at_most, gigabytes, peak
from onnxfuse.verification.planning import (
    SEARCHING,
    Progress,
    RealInputs,
    branch_cases,
    more_of,
    plan_of,
    searched_sizes,
    shape_key,
    shapes_text,
    taker,
)  # fmt: skip
from onnxfuse.verification.precision import is_narrower
from onnxfuse.verification.report import LEFT_OUT, CaseRow, KernelRow, OutputRow, Report
from onnxfuse.verification.rounding import Rounding, rounding_behind
from onnxfuse.verification.sessions import Source
from onnxfuse.verification.tolerance import Tolerances, Tolerated, tolerated
from onnxfuse.verification.truth import (
    REFERENCE_GAPS,
    Choice,
    Truth,
    as_half,
    as_tf32,
    float32_truth,
    no_float64,
    truth_of,
)
from onnxfuse.verification.wide import Wide

Arrays = dict[str, npt.NDArray[Any]]

FUSED_FAILS = "the fused model fails"
"""The note of a case that the original takes and the fused model does not."""

FEW_ELEMENTS = 256
"""An output of fewer elements can be right by luck: the original is run on nudged inputs too."""
NUDGES = 8
"""Such runs per case: the chance that all nine errors are below half of the fused model's is below 1 in 100."""

NUDGED_ELEMENTS = 1 << 22
"""Outputs of up to so many elements are run on nudged inputs in doubtful cases: eight copies of 16 MB."""

CLASS_RANKS = (1, 5)
"""The top-k agreements that are told of class scores when nothing else is asked for."""
NO_LUCK = 100.0
"""An error this many times the budget needs no more seeds: an own error below a hundredth of its spread is rare."""


@dataclass(frozen=True)
class Judging:
    """How outputs are judged."""

    tolerances: Tolerances = field(default_factory=lambda: Tolerances({}, {}))
    """In place of the error budget, for the outputs that they name."""
    nan: budget.NanPolicy = "equal"
    top_k: tuple[int, ...] | None = None
    """Agreements that are told of the last axis; None for CLASS_RANKS of what `classes` takes for class scores."""
    rounding: Rounding = ""
    """By what else than its own runs the original's error is judged: `tf32`, with the factors of products rounded to
    that; `half`, with every half value rounded to its type."""
    wide: bool = False
    """Whether models of half types are compared in float32 too (`wide`); windows show a fault without that."""
    use_tf32: bool | None = None
    """ONNX Runtime's CUDA option; None for what the fused file says, and else its default, which is to round."""


def compare(
    original: Source,
    fused: Source,
    inputs: Sequence[RealInputs] | None = None,
    seeds: Sequence[int] = (0,),
    shapes: Shapes | None = None,
    providers: Sequence[str] | None = None,
    truth: Choice = "auto",
    progress: Progress = lambda step, done, total: None,
    judging: Judging | None = None,
    fused_providers: Sequence[str] | None = None,
    limits: Limits | None = None,
    rules: Sequence[str | Path] = (),
) -> Report:
    """Return the report of `onnxfuse.verification.verify`, which tells what the arguments are."""
    began = time.perf_counter()
    original_model, fused_model = load(original, "original"), load(fused, "fused")
    judging, limits = judging or Judging(), limits or Limits()
    judging.tolerances.check([o.name for o in original_model.graph.output])
    providers = sessions.chosen_providers(providers)
    elsewhere = None if fused_providers is None else sessions.chosen_providers(fused_providers)
    report = Report(
        providers[0], "", "", "", (), (), (), tuple(interface_problems(original_model, fused_model)), 0.0,
        "" if elsewhere is None else elsewhere[0],
        without_tf32=_why_without_tf32(judging, fused_model, [*providers, *(elsewhere or ())]),
        limits={"seconds": limits.seconds, "memory": limits.memory},
    )  # fmt: skip
    halves = is_narrower(original_model, TensorProto.FLOAT)
    wide: Wide | None = None
    wrong_in_float32 = False
    if not report.problems:
        specs = input_specs(original_model)
        plan = plan_of(specs, inputs, seeds, shapes)
        with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
            # One copy of the weights each in the end, in the oracle and the sessions: what was read is let go before
            # the next ones open.
            cuda = sessions.tf32_options(judging.use_tf32, fused_model)
            fused_file = sessions.openable(fused, fused_model, folder)
            nothing = without_elements(fused_model)
            del fused_model
            file = sessions.openable(original, original_model, folder)
            # An original that ONNX Runtime does not open is told as that, and not as one without a truth.
            doing(model="original", case=None)
            plain = sessions.plain(file, providers, cuda=cuda)
            runs, said = taker(plain, progress), shapes or {}
            if inputs is None:
                until = SEARCHING * limits.seconds
                found = searched_sizes(runs, original_model, specs, plan, said, lambda: limits.spent > until)
                shapes, report = {**(shapes or {}), **found}, replace(report, searched=found)
                plan = plan_of(specs, inputs, seeds, shapes) if found else plan
            bodies = Bodies(original_model)
            if bodies.every:
                try:
                    latest = limits.spent + SEARCHING * limits.seconds
                    plan = plan + branch_cases(
                        bodies, runs, original_model, specs, plan, said, lambda: limits.spent > latest
                    )
                    never = tuple(b.text for b in bodies.never)
                except ModelError as error:
                    never = (f"which branches ran could not be seen: {error}",)
                report = replace(report, never_ran=never)
            scores = class_outputs(original_model) if judging.top_k is None else frozenset()
            needs = {key: EVALUATIONS * peak(original_model, dict(key)) for key in {shape_key(c) for c in plan}}
            too_much = _too_much_in_float64(original_model, plan, limits) if truth == "auto" else ""
            oracle = (
                float32_truth(original_model, too_much, file)
                if too_much
                else truth_of(original_model, truth, [c.shapes for c in plan], file)
            )
            rounded = {"tf32": as_tf32, "half": as_half}[judging.rounding](original_model) if judging.rounding else None
            why_not_wide = ""
            if judging.wide and halves and oracle.kind == "float64":
                try:
                    wide = Wide(original_model, load(fused, "fused"))
                except ModelError as error:
                    why_not_wide = str(error)
            del original_model
            # On two providers the original's own error is the worse one of the two.
            twin = None if elsewhere is None else sessions.plain(file, elsewhere, cuda=cuda)
            doing(model="fused", case=None)
            session = sessions.with_kernels(fused_file, elsewhere or providers, cuda, rules)
            del file, fused_file
            by_kind = any(s.array_type.kind in "fV" for s in specs)
            comparison = _Comparison(
                plain, twin, session, oracle, lambda why: float32_truth(load(original, "original"), why), judging,
                rounded, scores, limits, needs, nothing, wide, why_not_wide,
            )  # fmt: skip
            report = _run(
                comparison, plan, lambda kinds: more_of(specs, plan, kinds, shapes), report, progress, by_kind=by_kind
            )
            exact = _pooled(comparison.exact, comparison.cases, by_kind=by_kind)
            wrong_in_float32 = bool(wide and wide.problems) or any(r.verdict == "mismatch" for r in exact)
    rounding = (
        ""
        if report.ok or judging.rounding or wrong_in_float32
        else rounding_behind(report, halves=halves and wide is not None)
    )
    if rounding:
        permitted = replace(judging, rounding=rounding, wide=False)  # What was wide was no problem.
        again = compare(
            original,
            fused,
            inputs,
            seeds,
            shapes,
            providers,
            truth,
            progress,
            permitted,
            fused_providers,
            limits.anew(),
            rules,
        )
        # Both begin with the same plan; what was doubtful the first time had more seeds.
        planned = report.cases[: len(again.cases)]
        as_much = sum(not c.note for c in again.cases) >= sum(not c.note for c in planned)
        if again.ok and as_much:
            report = replace(
                again, searched=report.searched, wide=report.wide, tf32=rounding == "tf32", half=rounding == "half"
            )
    return replace(report, seconds=time.perf_counter() - began)


def _too_much_in_float64(model: onnx.ModelProto, plan: Sequence[Case], limits: Limits) -> str:
    """Return why the truth is not computed in float64, empty where the smallest case and the weights fit."""
    weights = 8 * sum(math.prod(t.dims) for t in model.graph.initializer)
    need = weights + min((peak(model, dict(key), float_bytes=8) for key in {shape_key(c) for c in plan}), default=0)
    return f"about {gigabytes(need)} in float64, of {gigabytes(limits.memory)}" if need > limits.memory else ""


def _run(
    comparison: "_Comparison",
    plan: Sequence[Case],
    more: Callable[[Collection[str]], Sequence[Case]],
    empty: Report,
    progress: Progress,
    *,
    by_kind: bool,
) -> Report:
    """Return the report after every case of `plan`, and those that `more` gives for the kinds of a doubtful one.

    Raises UsageError if the original takes none of them.
    """
    runtime.reset_launches()
    comparison.run_all(plan, progress)
    doubtful = _doubtful(_pooled(comparison.rows, comparison.cases, by_kind=by_kind), comparison.cases)
    if doubtful:
        comparison.careful = True
        # A verdict of wrong is worth as much time again.
        comparison.limits = comparison.limits.anew()
        comparison.run_all(more(doubtful), progress)
    progress("judging", len(plan), len(plan))
    if not comparison.rows and not comparison.problems:
        refused = (
            f"the original runs on none of the inputs: {comparison.cases[-1].note}" if plan else "no inputs to run"
        )
        raise UsageError(
            refused, "Say what its dynamic dimensions are (--shape name=1,7), or give real inputs (--inputs)."
        )
    kernels = _kernels(comparison.session)
    rows = _pooled(comparison.rows, comparison.cases, by_kind=by_kind)
    wrong = {r.output for r in rows if r.verdict == "mismatch"}
    wide = comparison.wide.problems if comparison.wide else {}
    return replace(
        empty,
        truth=comparison.truth.kind,
        truth_how=comparison.truth.how,
        truth_why=comparison.truth.why,
        cases=tuple(comparison.cases),
        rows=rows,
        kernels=kernels,
        wide="compared" if comparison.wide else comparison.why_not_wide,
        problems=(
            *comparison.problems,
            *(why for name, why in wide.items() if name not in wrong),
            *(
                launch_problems(kernels, comparison.nothing)
                if (empty.fused_provider or empty.provider) == sessions.CUDA
                else ()
            ),
        ),
    )


def interface_problems(original: onnx.ModelProto, fused: onnx.ModelProto) -> list[str]:
    """Return what a caller of the fused model would trip over: inputs and outputs of other names, types or shapes."""
    problems = []
    for what in ("input", "output"):
        ours, theirs = _interface(original, what), _interface(fused, what)
        problems += [f"{what} '{name}' is missing in the fused model" for name in ours if name not in theirs]
        problems += [f"{what} '{name}' is not in the original" for name in theirs if name not in ours]
        problems += [
            f"{what} '{name}' is {theirs[name]} in the fused model, {ours[name]} in the original"
            for name in ours
            if name in theirs and _types_differ(ours[name], theirs[name])
        ]
        if not problems and list(ours) != list(theirs):
            problems.append(f"{what}s stand in another order: {', '.join(theirs)}; original: {', '.join(ours)}")
    return problems


def launch_problems(kernels: Sequence[KernelRow], nothing: Collection[str] = ()) -> list[str]:
    """Return which fused ops did not run as kernels or in the library, and why; `nothing` have nothing to compute."""
    problems = []
    for row in kernels:
        if row.runs_as == "function":
            problems.append(f"fused op {row.op} ran as its body, not as a kernel: {row.reason or 'no reason given'}")
        elif row.runs_as == "kernel" and row.launches == 0 and row.op not in nothing:
            problems.append(f"the kernel of fused op {row.op} was never launched (a branch that no case took?)")
    return problems


class _Comparison:
    """The cases run so far. Holds the values of one case at a time."""

    def __init__(
        self,
        plain: Any,
        twin: Any,
        session: Any,
        truth: Truth,
        in_float32: Callable[[str], Truth],
        judging: Judging,
        rounded: Callable[[Arrays], Arrays] | None,
        scores: Collection[str],
        limits: Limits,
        needs: Mapping[tuple[tuple[str, tuple[int, ...]], ...], int],
        nothing: Collection[str],
        wide: Wide | None,
        why_not_wide: str,
    ) -> None:
        self.plain, self.twin, self.session, self.truth = plain, twin, session, truth
        self.in_float32, self.judging, self.rounded, self.scores = in_float32, judging, rounded, scores
        self.careful = False
        """Whether the cases are doubtful ones, in which the original is run on nudged inputs for every output."""
        self.limits, self.needs = limits, needs
        self.nothing = nothing
        """The fused ops that have nothing to compute, for which no launch is expected."""
        self.wide, self.why_not_wide = wide, why_not_wide
        self.cases: list[CaseRow] = []
        self.rows: list[OutputRow] = []
        self.exact: list[OutputRow] = []
        """The same of the fused model in float32, whose last value alone is rounded: an error there is no rounding."""
        self.problems: list[str] = []

    def run_all(self, plan: Sequence[Case], progress: Progress) -> None:
        """Run the cases one after another."""
        for number, case in enumerate(plan):
            progress(f"{case.name} {shapes_text(case)}", number, len(plan))
            self.run(case)

    def run(self, case: Case) -> None:
        """Run one case; made-up inputs that the original itself refuses are noted and left out."""
        began = time.perf_counter()
        note = self._too_much(case) or self._run(case)
        self.cases.append(
            CaseRow(
                case.name,
                case.seed,
                dict(case.shapes),
                time.perf_counter() - began,
                note,
                case if case.generated else None,
            )
        )

    def _too_much(self, case: Case) -> str:
        """Return why the case is left out for what it would cost; the cheapest one never is, nor the first."""
        need, least = self.needs.get(shape_key(case), 0), min(self.needs.values(), default=0)
        if need > max(self.limits.memory, least):
            return f"{LEFT_OUT}about {gigabytes(need)}, and it may take {gigabytes(self.limits.memory)} (--memory)"
        longest = max((c.seconds for c in self.cases), default=0.0)
        if self.rows and self.limits.spent + longest > self.limits.seconds:
            return f"{LEFT_OUT}the time of {self.limits.seconds:g} s is used up (--time)"
        return ""

    def _run(self, case: Case) -> str:
        inputs = case.make()
        said = case if case.generated else case.name
        doing(model="original", case=said)
        try:
            expected = sessions.run(self.plain, inputs, quiet=case.generated)
        except sessions.ORT_ERRORS as error:
            if not case.generated:
                raise UsageError(
                    f"the original fails on {case.name}: {first_line(error)}", "Are these its inputs?"
                ) from error
            return f"the original refuses it: {first_line(error)}"
        doing(model="fused", case=said)
        try:
            got = sessions.run(self.session, inputs)
        except sessions.ORT_ERRORS as error:
            self.problems.append(
                f"the fused model fails where the original runs ({shapes_text(case)}): {first_line(error)}"
            )
            return FUSED_FAILS
        unsound = [n for n, x in expected.items() if not isinstance(x, np.ndarray)]
        if unsound:
            raise UsageError(
                f"output '{unsound[0]}' is not a tensor and cannot be compared", "Cut the model before it."
            )
        doing(model="truth", case=said)
        try:
            truth, unsure = self._true(inputs, expected)
        except sessions.ORT_ERRORS as error:
            # The kernels of CUDA look at no index: what the CPU refuses runs there, and nobody knows what is right.
            why = f"the original runs, but has no true result: {first_line(error)}"
            if not case.generated:
                raise UsageError(f"{case.name}: {why}", "Are these its inputs, of sizes that it takes?") from error
            return why
        wide = self._compare_wide(inputs, truth)
        doing(model="original", case=said)
        siblings, shaken = self._on_nudged(inputs, expected), self._shaken(inputs, expected)
        for name, value in (sessions.run(self.twin, inputs) if self.twin is not None else {}).items():
            siblings.setdefault(name, []).append(value)
        for name, value in (self.rounded(inputs) if self.rounded is not None else {}).items():
            dtype = expected[name].dtype
            if dtype == np.float32 or (self.judging.rounding == "half" and dtype.kind in "fV"):
                siblings.setdefault(name, []).append(value.astype(dtype))
        for name in list(expected):
            # Each output is let go as soon as it is measured.
            value, fused = expected.pop(name), got.pop(name)
            originals = [value, *siblings.pop(name, [])]
            top_k = self.judging.top_k or (CLASS_RANKS if name in self.scores else ())
            true = truth.pop(name)
            if name in wide and wide[name].dtype.kind == "f":
                exact = budget.measure(wide[name].astype(value.dtype), originals, true, nudged=shaken.get(name, ()))
                self.exact.append(OutputRow(name, str(value.dtype), len(self.cases), exact))
            measure = budget.measure(
                fused, originals, true, nudged=shaken.pop(name, ()), top_k=top_k, nan=self.judging.nan,
                unsure=name in unsure,
            )  # fmt: skip
            self.rows.append(
                OutputRow(
                    name, str(value.dtype), len(self.cases), measure, self._tolerated(name, fused, value, measure)
                )
            )
        return ""

    def _tolerated(
        self, name: str, fused: npt.NDArray[Any], original: npt.NDArray[Any], measure: budget.Measure
    ) -> Tolerated | None:
        given = self.judging.tolerances.of(name, str(original.dtype))
        if given is None or measure.unlike or original.dtype.kind in "SUO":
            return None
        return tolerated(fused, original, *given)

    def _true(self, inputs: Arrays, expected: Arrays) -> tuple[Arrays, set[str]]:
        """Return the true outputs, and which of them nobody can be sure of.

        Where the original is further from them than it rounds, each operator is looked at again on these inputs. What
        is far all the same, though they all agree with ONNX Runtime, is rounding that adds up; where some could not be
        asked about, nobody knows. An operator that float64 turns out to lack, or time or memory, ends float64. Raises
        what ONNX Runtime raises for inputs on which no operator is defined.
        """
        if self.truth.kind != "float64":
            return self.truth.evaluate(inputs), set()
        try:
            with at_most(self.limits.memory):
                true = self.truth.evaluate(inputs)
                if self.truth.witness is None or not _apart(expected, true):
                    return true, set()
                true = self.truth.again(inputs)
            unsure = _apart(expected, true) if self.truth.witness.unasked else set()
            self.truth.witness.unsure |= bool(unsure)
            return true, unsure
        except (MemoryError, *REFERENCE_GAPS) as error:
            wide = self.in_float32(no_float64(error))
            true = wide.evaluate(inputs)  # where that fails, too, the inputs are at fault, and float64 stays for others
            self.truth = wide
            return true, set()

    def _compare_wide(self, inputs: Arrays, truth: Arrays) -> Mapping[str, npt.NDArray[Any]]:
        """Return what the fused model gives in float32, compared with the truth; nothing where it is not compared."""
        if self.wide is None:
            return {}
        try:
            return self.wide.add(inputs, truth)
        except sessions.ORT_ERRORS as error:
            self.wide, self.why_not_wide = None, first_line(error)
            return {}

    def _on_nudged(self, inputs: Arrays, expected: Arrays) -> dict[str, list[npt.NDArray[Any]]]:
        """Return what the original gives on nudged inputs, for each output whose own error one run does not tell."""
        few = [n for n, x in expected.items() if 0 < x.size < FEW_ELEMENTS]
        doubtful = few + [n for n, x in expected.items() if n not in few and not self.truth.wider_than(x.dtype)]
        runs: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in doubtful}
        for seed in range(NUDGES if few else 1 if doubtful else 0):
            moved = nudge(inputs, seed)
            if moved is None:
                break
            values = sessions.run(self.plain, moved)
            for name in few if seed else doubtful:
                runs[name].append(values[name])
        return runs

    def _shaken(self, inputs: Arrays, expected: Arrays) -> dict[str, list[npt.NDArray[Any]]]:
        """Return what the original gives on nudged inputs for the other outputs of a doubtful case."""
        many = [n for n, x in expected.items() if self.careful and FEW_ELEMENTS <= x.size <= NUDGED_ELEMENTS]
        runs = [nudge(inputs, seed) for seed in range(NUDGES if many else 0)]
        values = [sessions.run(self.plain, moved, many) for moved in runs if moved is not None]
        return {name: [v[name] for v in values] for name in many}


def _apart(expected: Arrays, true: Arrays) -> set[str]:
    return {name for name, x in expected.items() if budget.apart(x, true[name])}


def _pooled(rows: Sequence[OutputRow], ran: Sequence[CaseRow], *, by_kind: bool) -> tuple[OutputRow, ...]:
    """Return the rows with own errors pooled over the cases of one kind, or over all: token ids have no kinds."""
    groups: dict[tuple[str, str], list[int]] = {}
    for n, row in enumerate(rows):
        case = ran[row.case]
        groups.setdefault((row.output, case.name if by_kind and case.seed is not None else ""), []).append(n)
    result = list(rows)
    for members in groups.values():
        for n, measure in zip(members, budget.pooled([rows[m].measure for m in members]), strict=True):
            result[n] = replace(rows[n], measure=measure)
    return tuple(result)


def _doubtful(rows: Sequence[OutputRow], ran: Sequence[CaseRow]) -> set[str]:
    """Return the kinds of made-up cases in which an output is out of its budget, and nowhere beyond any doubt."""
    wrong = [r for r in rows if r.tolerance is None and r.measure.fault]
    if any(r.measure.severity > NO_LUCK for r in wrong):
        return set()
    return {ran[r.case].name for r in wrong if ran[r.case].seed is not None}


def load(source: Source, name: str) -> onnx.ModelProto:
    """Return the model behind `source`, which messages call `name`. Raises ModelError."""
    if isinstance(source, onnx.ModelProto):
        return source
    return io.parse(source, f"the {name} model") if isinstance(source, bytes) else io.load(source)


def _why_without_tf32(judging: Judging, fused: onnx.ModelProto, providers: Sequence[str]) -> str:
    if sessions.CUDA not in providers or sessions.tf32_options(judging.use_tf32, fused).get("use_tf32") != "0":
        return ""
    return "asked for" if judging.use_tf32 is False else "the fused file was made with --strict-fp32"


def _kernels(session: Any) -> tuple[KernelRow, ...]:
    launches = runtime.launches()
    return tuple(KernelRow(p.op, p.rule, p.nodes, p.runs_as, p.reason, launches.get(p.op, 0)) for p in session.fused)


def _interface(model: onnx.ModelProto, what: str) -> dict[str, ValueType]:
    types = value_types(model.graph)
    initialized = {t.name for t in model.graph.initializer}
    values = model.graph.output if what == "output" else [i for i in model.graph.input if i.name not in initialized]
    return {v.name: types.get(v.name, UNKNOWN) for v in values}


def _types_differ(a: ValueType, b: ValueType) -> bool:
    if a.dtype and b.dtype and a.dtype != b.dtype:
        return True
    if a.shape is None or b.shape is None:
        return False
    numbers = [(x, y) for x, y in zip(a.shape, b.shape, strict=False) if isinstance(x, int) and isinstance(y, int)]
    return len(a.shape) != len(b.shape) or any(x != y for x, y in numbers)
