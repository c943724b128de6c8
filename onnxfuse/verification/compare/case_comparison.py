"""Run the cases of a verification in turn, measuring each output against the reference and the original's own error."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.support import process_limits
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.support.isolation import doing
from onnxfuse.support.progress import Progress
from onnxfuse.verification.cases.limits import Limits, gigabytes
from onnxfuse.verification.cases.planning import shape_key, shapes_text
from onnxfuse.verification.compare.judging import Judging
from onnxfuse.verification.inputs.inputs import Case, perturb
from onnxfuse.verification.reference.float64_reference import REFERENCE_GAPS, Float64Reference, no_float64
from onnxfuse.verification.reference.reference import OutOfRange, OutOfTime
from onnxfuse.verification.report.rows import LEFT_OUT, CaseRow, OutputRow
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.tensors import KEYS, MISSING, counts, is_empty_metadata, output_of
from onnxfuse.verification.tolerance import error_budget
from onnxfuse.verification.tolerance.output_error import NOTHING, Measure
from onnxfuse.verification.tolerance.user_tolerances import Tolerated, tolerated
from onnxfuse.verification.variants import broken_original
from onnxfuse.verification.variants.broken_original import Unoptimized
from onnxfuse.verification.variants.error_draws import ErrorDraws
from onnxfuse.verification.variants.float32_twin import Float32Comparison
from onnxfuse.verification.variants.perturbed import PERTURBATIONS

Arrays = dict[str, npt.NDArray[Any]]

FUSED_FAILS = "the fused model fails"
"""Note of a case that the original accepts and the fused model does not."""

FEW_ELEMENTS = 256
"""Outputs with fewer elements can be right by chance: the original is also run on perturbed inputs."""
PERTURBED_ELEMENTS = 1 << 22
"""Largest output of which perturbed runs are held in doubtful cases: eight copies of 16 MB."""

FOR_FLOAT64 = 0.5
"""Share of the time limit that the first case's reference may take in float64; a float32 one takes seconds."""

CLASS_RANKS = (1, 5)
"""Top-k agreements reported for class scores by default."""


@dataclass(frozen=True)
class _Runs:
    """Values of one case by the names of outputs; what is measured is popped, so that memory is returned early."""

    expected: Arrays
    """The original's."""
    got: Arrays
    """The fused model's."""
    truth: Arrays
    unsure: set[str]
    """Outputs whose truth is in doubt."""
    wide: Mapping[str, npt.NDArray[Any]]
    """The fused model's in float32."""
    right: Mapping[str, list[npt.NDArray[Any]]]
    """The unoptimized original's, for outputs that ONNX Runtime's optimizations break."""
    siblings: dict[str, list[npt.NDArray[Any]]]
    """Of the original by another provider, on perturbed inputs, or rounded otherwise."""
    perturbed: dict[str, list[npt.NDArray[Any]]]
    """Of the original on perturbed inputs, in doubtful cases."""
    rerounded: Callable[[], dict[str, list[npt.NDArray[Any]]]]
    """The original's with weights rounded otherwise; run when first called."""


@dataclass(frozen=True)
class OriginalRuns:
    """The original, and in what other ways it can be run to learn its own error."""

    session: Any
    perturbed_tables: Iterator[Callable[[Arrays], Arrays]]
    """Runners of it with perturbed tables, opened one by one."""
    rounded: Callable[[Arrays], Arrays] | None
    """Evaluates it as the judged model may round; None if that may not."""
    ties: Sequence[Callable[[Arrays], Arrays]]
    """Evaluate it within the rounding errors of half precision, if the judged model may round so and it quantizes."""
    variants: Callable[[], Sequence[Callable[[Arrays], Arrays]]]
    """Opens its equivalent forms."""
    unoptimized: Unoptimized
    error_draws: Callable[[], ErrorDraws | None]
    """Opens what draws errors of float32 arithmetic, in doubtful cases; None if the model has other types."""
    twin: Any = None
    """Its session on another provider; None if there is none."""
    on_cpu: Callable[[], Any] | None = None
    """Opens such a session on the CPU, in doubtful cases; None if it runs there anyway."""


@dataclass(frozen=True)
class OutputFacts:
    """What is known of the original's outputs before it is run."""

    scores: Collection[str]
    """Those that score classes."""
    without_elements: Collection[str]
    """Those that are declared to have no element."""
    selects: bool
    """Whether some depend on a selection by value."""
    steps: Mapping[str, float]
    """Of those that the model rounds to multiples of a step, that step."""
    float8: Mapping[str, float]
    """Of those that it rounds to float8 numbers and dequantizes, the scale."""


@dataclass(frozen=True)
class References:
    """What the true result is computed by."""

    first: Float64Reference
    in_float32: Callable[[str], Float64Reference]
    """Opens the one to fall back on, for a reason."""


@dataclass(frozen=True)
class Float32Check:
    """The comparison of the fusions in float32."""

    comparison: Float32Comparison | None
    why_not: str
    """Why there is none; empty where it is not asked for."""


class Comparison:
    """The cases compared so far. Holds the values of one case at a time."""

    def __init__(
        self,
        original: OriginalRuns,
        session: Any,
        references: References,
        facts: OutputFacts,
        judging: Judging,
        limits: Limits,
        needs: Mapping[tuple[tuple[str, tuple[int, ...]], ...], int],
        float32: Float32Check,
    ) -> None:
        """Compare the fused model's `session` with the original; `needs` are the bytes of a case, by its shapes."""
        self.original, self.session, self.facts, self.judging = original, session, facts, judging
        self.truth, self._in_float32 = references.first, references.in_float32
        self.twin = original.twin
        self.outputs = [o.name for o in original.session.get_outputs()]
        self.opened = {o.name for o in original.session.get_outputs() if not o.type.startswith("tensor")}
        """Outputs that are not tensors; the tensors in them are compared one by one."""
        self._variants: Sequence[Callable[[Arrays], Arrays]] = ()
        self.error_draws: ErrorDraws | None = None
        """What draws errors of float32 arithmetic; None before the first doubtful case, and for other types."""
        self._tables: list[Callable[[Arrays], Arrays]] = []
        self.doubtful = False
        """Whether to treat cases as doubtful: the original is run on perturbed inputs for every output."""
        self.doubted = False
        """Whether a case exceeded its budget: a model that selects by value may have selected differently."""
        self.limits, self.needs = limits, needs
        self.wide, self.why_not_wide = float32.comparison, float32.why_not
        self.cases: list[CaseRow] = []
        self.rows: list[OutputRow] = []
        self.exact: list[OutputRow] = []
        """The same for the fused model evaluated in float32 with only its last value rounded: its error is not due to
        rounding."""
        self.problems: list[str] = []
        self.longest = 0.0
        """Seconds of the slowest case with the current reference."""

    def extend_limits(self) -> None:
        """Extend the time limit once more, and also run the other variants of the original from here on.

        A verdict of wrong justifies that.
        """
        self.limits, self.doubted = self.limits.restarted(), True
        self._variants = self.original.variants()
        self.error_draws = self.original.error_draws() if self.truth.kind == "float64" else None

    def treat_as_doubtful(self) -> None:
        """Treat the following cases as doubtful.

        On a GPU the original is then also run on the CPU. Where many elements depend on one sum, their error depends on
        the order of summation, and a single run says little about how large it can be.
        """
        self.doubtful = True
        if self.twin is None and self.original.on_cpu is not None:
            with suppress(ModelError):  # some operators exist on CUDA only
                self.twin = self.original.on_cpu()

    def by_twin(self, inputs: Arrays) -> Mapping[str, Any]:
        """Return the original's outputs on the other provider; empty if it runs on one only."""
        if self.twin is None:
            return {}
        try:
            return sessions.tensors(self.twin, inputs)
        except sessions.ORT_ERRORS:
            return {}  # a model need not run on both providers; then there is no second error to measure

    def _by_variants(
        self, inputs: Arrays, expected: Arrays, reference: Arrays
    ) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield outputs of the original's variants, except those whose deviation exceeds rounding."""
        sound = {name for name, x in expected.items() if not error_budget.exceeds_rounding(x, reference[name])}
        for form in self._variants:
            with suppress(*sessions.ORT_ERRORS):  # without this variant there is one run less
                for name, x in form(inputs).items():
                    if name in expected and (
                        name not in sound or not error_budget.exceeds_rounding(x, reference[name])
                    ):
                        yield name, x

    def run_all(self, plan: Sequence[Case], progress: Progress) -> None:
        """Run the cases in order."""
        for index, case in enumerate(plan):
            progress(f"{case.name} {shapes_text(case)}", index, len(plan))
            self.run(case)

    def run_again(self, index: int, case: Case) -> None:
        """Run a case again and replace its earlier result."""
        rows, exact = len(self.rows), len(self.exact)
        self.run(case)
        last = self.cases.pop()
        if last.note:
            return
        self.cases[index] = last
        self.rows = _replaced(self.rows[:rows], self.rows[rows:], index)
        self.exact = _replaced(self.exact[:exact], self.exact[exact:], index)

    def run(self, case: Case) -> None:
        """Run one case; generated inputs that the original itself rejects are noted and skipped."""
        start, reference = time.perf_counter(), self.truth
        note = self._why_skipped(case) or self._run(case)
        seconds = time.perf_counter() - start
        # Timings of float64 do not apply after the fallback to float32.
        self.longest = max(self.longest, seconds) if self.truth is reference else 0.0
        self.cases.append(CaseRow.of(case, seconds, note))

    def _why_skipped(self, case: Case) -> str:
        """Return why the case is skipped for its cost; never for the cheapest case, nor for the first."""
        need, cheapest = self.needs.get(shape_key(case), 0), min(self.needs.values(), default=0)
        if need > max(self.limits.memory, cheapest):
            return f"{LEFT_OUT}about {gigabytes(need)}, and it may take {gigabytes(self.limits.memory)} (--memory)"
        if self.rows and self.limits.spent + self.longest > self.limits.seconds:
            return f"{LEFT_OUT}{self.limits.used_up}"
        return ""

    def _run(self, case: Case) -> str:
        """Run a case and add the rows of its outputs; return why it is left out or fails, empty where it does not."""
        inputs = case.make()
        label = case if case.generated else case.name
        doing(model="original", case=label)
        expected = self._by_original(case, inputs)
        if isinstance(expected, str):
            return expected
        doing(model="fused", case=label)
        try:
            actual = sessions.tensors(self.session, inputs)
        except sessions.ORT_ERRORS as error:
            self.problems.append(fused_fails(case, error))
            return FUSED_FAILS
        # A tensor missing on one side belongs to a sequence of another length or the like; that length is compared,
        # too.
        expected = {n: x for n, x in expected.items() if n in actual}
        doing(model="truth", case=label)
        true = self._reference_or_note(case, inputs, expected)
        if isinstance(true, str):
            return true
        reference, uncertain = true
        wide = self._compare_wide(inputs, reference)
        doing(model="original", case=label)
        runs = self._runs(inputs, expected, actual, reference, uncertain, wide)
        keys = {n: tuple(x.tolist()) for n, x in expected.items() if counts(n, self.outputs) and x.ndim}
        for name in list(expected):
            self._add_row(name, runs, keys.get(f"{name}{KEYS}", ()))
        return ""

    def _by_original(self, case: Case, inputs: Arrays) -> Arrays | str:
        """Return the original's outputs, or why it refuses generated inputs; raises `UsageError` for a user's."""
        try:
            return sessions.tensors(self.original.session, inputs)
        except sessions.ORT_ERRORS as error:
            if not case.generated:
                raise UsageError(
                    f"the original fails on {case.name}: {first_line(error)}", "Are these its inputs?"
                ) from error
            return f"the original refuses it: {first_line(error)}"

    def _reference_or_note(self, case: Case, inputs: Arrays, expected: Arrays) -> tuple[Arrays, set[str]] | str:
        """Return what `reference_of` returns, or why there is no truth; raises `UsageError` for a user's inputs."""
        try:
            return self.reference_of(inputs, expected)
        except OutOfTime:
            return f"{LEFT_OUT}{self.limits.used_up}"
        except OutOfRange as error:
            return f"{LEFT_OUT}{error}"
        except sessions.ORT_ERRORS as error:
            # CUDA kernels do not check indices: inputs that the CPU rejects run there with undefined results.
            why = f"the original runs, but has no true result: {first_line(error)}"
            if not case.generated:
                raise UsageError(f"{case.name}: {why}", "Are these its inputs, of sizes that it takes?") from error
            return why

    def _runs(
        self,
        inputs: Arrays,
        expected: Arrays,
        actual: Arrays,
        reference: Arrays,
        uncertain: set[str],
        wide: Mapping[str, npt.NDArray[Any]],
    ) -> _Runs:
        """Run the original as often as it takes to know its own error on these inputs."""
        right = self.original.unoptimized.right(inputs, expected, reference)
        siblings, perturbed = (
            self._on_perturbed_inputs(inputs, expected),
            self._perturbed_if_doubtful(inputs, expected, actual),
        )
        like = {name: (x.shape, x.dtype) for name, x in expected.items()}
        rerounded = cache(lambda: self._on_rerounded_weights(inputs, like))
        if any(x.dtype.kind in "biu" and not np.array_equal(x, actual[n]) for n, x in expected.items()):
            # A selection among nearly equal candidates depends on the rounding of weights, and so does everything
            # computed from it. Perturbed inputs hardly show that, and token ids cannot be perturbed.
            for name, values in rerounded().items():
                siblings.setdefault(name, []).extend(values)
        for name, value in self.by_twin(inputs).items():
            siblings.setdefault(name, []).append(value)
        for name, value in self._by_variants(inputs, expected, reference):
            siblings.setdefault(name, []).append(value)
        for name, value in (self.original.rounded(inputs) if self.original.rounded is not None else {}).items():
            dtype = expected[name].dtype if name in expected else value.dtype
            half = self.judging.rounding == "half" and (dtype.kind in "fV" or name in self.facts.steps)
            if dtype == np.float32 or half:
                siblings.setdefault(name, []).append(value.astype(dtype))
        for run in self.original.ties:
            for name, value in run(inputs).items():
                if name in expected and (expected[name].dtype.kind in "fV" or name in self.facts.steps):
                    perturbed.setdefault(name, []).append(value.astype(expected[name].dtype))
        return _Runs(expected, actual, reference, uncertain, wide, right, siblings, perturbed, rerounded)

    def _add_row(self, name: str, runs: _Runs, keys: tuple[Any, ...]) -> None:
        """Measure an output and add its row; its values are let go."""
        value, fused = runs.expected.pop(name), runs.got.pop(name)
        originals = runs.right.get(name) or [value, *runs.siblings.pop(name, [])]
        top_k = self.judging.top_k or (CLASS_RANKS if name in self.facts.scores else ())
        true, step = runs.truth.pop(name), self.facts.steps.get(name, 0.0)
        reach, float8 = self.judging.reach.get(name, 0.0), self.facts.float8.get(name, 0.0)
        if name in runs.wide and runs.wide[name].dtype.kind == "f":
            self._add_exact_row(name, runs, value, originals, true)
        options: dict[str, Any] = {
            "top_k": top_k, "nan": self.judging.nan, "step": step, "reach": reach, "float8": float8,
        }  # fmt: skip
        as_run = None
        if name in runs.right:
            measure = broken_original.measure_against_unoptimized(fused, value, originals, true, **options)
            as_run = replace(
                error_budget.measure(fused, [value], true, **options), own_off=measure.own_off, follows=measure.follows
            )
        else:
            measure = error_budget.measure(
                fused, originals, true, perturbed=runs.perturbed.pop(name, ()), unsure=name in runs.unsure, **options
            )
        if not measure.fault and counts(name, self.outputs) and is_empty_metadata(value):
            measure = NOTHING
        if measure == NOTHING and name in self.facts.without_elements:
            measure = replace(measure, identical=True)
        if self.wide is not None and value.dtype.itemsize == 2:
            measure = replace(measure, eps=0.0)  # What a half type hides is seen in float32, where nothing is.
        owner = output_of(name, self.outputs)
        self.rows.append(
            OutputRow(
                name, str(value.dtype), len(self.cases), measure,
                None if counts(name, self.outputs) else self._tolerated(owner, fused, value, measure),
                part_of=owner if owner in self.opened else "", as_run=as_run, keys=keys,
            )
        )  # fmt: skip

    def _add_exact_row(
        self, name: str, runs: _Runs, value: npt.NDArray[Any], originals: list[npt.NDArray[Any]], true: Any
    ) -> None:
        """Measure an output of the fused model in float32; adds to `originals` what explains a fault there."""
        alone, perturbed = (
            runs.wide[name].astype(value.dtype),
            () if name in runs.right else runs.perturbed.get(name, ()),
        )
        exact = error_budget.measure(alone, originals, true, perturbed=perturbed)
        if exact.fault and self.wide is not None and self.wide.rounded_again:
            # What the rounding of weights explains there, it explains in the half type, too.
            originals += runs.rerounded().get(name, ())
            exact = error_budget.measure(alone, originals, true, perturbed=perturbed)
        self.exact.append(OutputRow(name, str(value.dtype), len(self.cases), exact))

    def _tolerated(
        self, name: str, fused: npt.NDArray[Any], original: npt.NDArray[Any], measure: Measure
    ) -> Tolerated | None:
        tolerance = self.judging.tolerances.of(name, str(original.dtype))
        if tolerance is None or measure.unlike or original.dtype.kind in "SUO":
            return None
        return tolerated(fused, original, *tolerance)

    def reference_of(self, inputs: Arrays, expected: Arrays) -> tuple[Arrays, set[str]]:
        """Return the reference outputs, and which of them are uncertain.

        If the original is further from them than rounding explains, every operator is checked again on these inputs. A
        remaining distance, if all operators agree with ONNX Runtime, is accumulated rounding; if some could not be
        checked, the output is uncertain. An operator missing in float64, or a lack of time or memory, ends the use of
        float64. Raises ONNX Runtime's error for inputs on which no operator is defined, and OutOfTime if other cases
        were judged before.
        """
        if self.truth.kind != "float64":
            return _reference_values(expected, self.truth.evaluate(inputs)), set()
        remaining = max(self.limits.seconds - self.limits.spent, 0.0)
        self.truth.end(time.perf_counter() + (remaining if self.rows else FOR_FLOAT64 * remaining))
        try:
            with process_limits.memory(self.limits.memory):
                true = _reference_values(expected, self.truth.evaluate(inputs))
                if self.truth.cross_check is None or not _beyond_rounding(expected, true):
                    return true, set()
                true = _reference_values(expected, self.truth.again(inputs))
            uncertain = _beyond_rounding(expected, true) if self.truth.cross_check.unchecked else set()
            self.truth.cross_check.unsure |= bool(uncertain)
            return true, uncertain
        except (MemoryError, *REFERENCE_GAPS) as error:
            if isinstance(error, OutOfTime) and self.rows:
                raise
            wide = self._in_float32(no_float64(error))
            true = _reference_values(
                expected, wide.evaluate(inputs)
            )  # if float32 fails as well, the inputs are at fault and float64 is used for the others
            self.truth = wide
            return true, set()

    def _compare_wide(self, inputs: Arrays, reference: Arrays) -> Mapping[str, npt.NDArray[Any]]:
        """Return the fused model's float32 outputs compared with the reference; empty if they are not compared."""
        if self.wide is None:
            return {}
        try:
            return self.wide.add(inputs, reference)
        except ModelError as error:
            why = f"{error}"
        except sessions.ORT_ERRORS as error:
            why = first_line(error)
        self.wide, self.why_not_wide = None, why
        return {}

    def _on_perturbed_inputs(self, inputs: Arrays, expected: Arrays) -> dict[str, list[npt.NDArray[Any]]]:
        """Return the original's outputs on perturbed inputs, for outputs whose own error one run does not determine."""
        few = [n for n, x in expected.items() if 0 < x.size < FEW_ELEMENTS]
        doubtful = few + [n for n, x in expected.items() if n not in few and not self.truth.wider_than(x.dtype)]
        runs: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in doubtful}
        perturbed: Arrays | None = {}
        for seed in range(PERTURBATIONS if few else 1 if doubtful else 0):
            perturbed = perturb(inputs, seed)
            if perturbed is None:
                break
            values = sessions.tensors(self.original.session, perturbed)
            for name in few if seed else doubtful:
                runs[name] += [values[name]] * (name in values)
        if perturbed is None and self.truth.kind != "float64":
            for run in self._on_tables(1):
                values = run(inputs)
                for name in doubtful:
                    runs[name] += [values[name]] * (name in values)
        return runs

    def _on_tables(self, count: int) -> Sequence[Callable[[Arrays], Arrays]]:
        """Return runners of the original with perturbed tables, up to a limit; opened on first use."""
        self._tables += islice(self.original.perturbed_tables, max(count - len(self._tables), 0))
        return self._tables[:count]

    def _perturbed_if_doubtful(
        self, inputs: Arrays, expected: Arrays, actual: Arrays
    ) -> dict[str, list[npt.NDArray[Any]]]:
        """Return the original's outputs on perturbed inputs for the other outputs of a doubtful case.

        Where integers differ every case is doubtful: one more run does not tell which of them depend on rounding. The
        same holds if the model selects by value and an output that depends on the selection exceeds its budget;
        embedding tables are perturbed if the inputs cannot be.
        """
        selection_doubtful = self.doubted and self.facts.selects
        many = [
            n
            for n, x in expected.items()
            if FEW_ELEMENTS <= x.size <= PERTURBED_ELEMENTS
            and (self.doubtful or selection_doubtful or (x.dtype.kind in "biu" and not np.array_equal(x, actual[n])))
        ]
        runs = [perturb(inputs, seed) for seed in range(PERTURBATIONS if many else 0)]
        values = [
            sessions.tensors(self.original.session, perturbed, many) for perturbed in runs if perturbed is not None
        ]
        if selection_doubtful and not values:
            many = [n for n, x in expected.items() if x.size <= PERTURBED_ELEMENTS]
            values = [run(inputs) for run in self._on_tables(PERTURBATIONS)]
        return {name: [v[name] for v in values if name in v] for name in many}

    def _on_rerounded_weights(
        self, inputs: Arrays, like: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    ) -> dict[str, list[npt.NDArray[Any]]]:
        """Return the outputs of a half-precision original with differently rounded weights; empty for other models.

        `like` holds the type and shape of each output; an output of another shape is dropped.
        """
        runs: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in like}
        for perturbed in self.wide.rerounded_runs if self.wide is not None else ():
            for name, value in perturbed(inputs).items():
                shape, dtype = like.get(name, (None, value.dtype))
                if value.shape == shape:
                    runs[name].append(value.astype(dtype))
        return runs


def fused_fails(case: Case, error: Exception) -> str:
    """Return the note for a case that the original accepts and the fused model does not."""
    return f"the fused model fails where the original runs ({shapes_text(case)}): {first_line(error)}"


def _replaced(rows: Sequence[OutputRow], reruns: Sequence[OutputRow], case: int) -> list[OutputRow]:
    """Return the rows with those of a case replaced by `reruns`."""
    others = [r for r in rows if r.case != case]
    return sorted([*others, *(replace(r, case=case) for r in reruns)], key=lambda r: r.case)


def _reference_values(expected: Arrays, reference: Arrays) -> Arrays:
    """Return the reference value of each of these tensors; one may be missing if a sequence is shorter there."""
    return {name: reference.get(name, MISSING) for name in expected}


def _beyond_rounding(expected: Arrays, true: Arrays) -> set[str]:
    return {name for name, x in expected.items() if error_budget.exceeds_rounding(x, true[name])}
