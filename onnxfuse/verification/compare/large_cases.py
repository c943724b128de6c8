"""Cases with large sizes and large values: what servers run, and where other kernels are chosen, in addition to small
cases.

Each kind of dynamic dimension is run once at a realistic serving size, and the numbers once with magnitudes up to the
range of their type, as large as the original accepts and their work allows. Which sizes are run depends on the model
and the options only: a case that does not fit into the time or the memory is omitted, not run smaller. Omissions are
reported.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

from onnxfuse.files.io import without_weights
from onnxfuse.graph.normalize import normalize
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import agreeing
from onnxfuse.support.progress import Progress
from onnxfuse.verification.cases.limits import CaseCosts, gigabytes
from onnxfuse.verification.cases.planning import shapes_text
from onnxfuse.verification.compare.case_comparison import Comparison
from onnxfuse.verification.compare.hoisted_bodies import computing, hoist_bodies
from onnxfuse.verification.compare.near_bounds import case_near_constants
from onnxfuse.verification.compare.optional_cases import NOT_INFORMATIVE, try_case
from onnxfuse.verification.compare.reached_bounds import SMALL_CONSTANT, BoundSite, bound_sites, case_reaching
from onnxfuse.verification.inputs.inputs import Array, Case, InputSpec, Shapes, cases, dimension, large_case, large_tops
from onnxfuse.verification.inputs.size_search import free_dimensions
from onnxfuse.verification.report.rows import FLOATS, LEFT_OUT, CaseRow, OutputRow
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.floats import float_type

LADDERS: Mapping[str, tuple[int, ...]] = {
    "batch": (65, 33, 17, 9),
    "sequence": (1024, 512, 257, 128, 65, 33, 20),
    "image": (640, 416, 256, 224, 160, 128),
}
"""Sizes per kind of dimension, tried from the largest: a batch with a remainder to tiles of 64; lengths up to the usual
ends of position tables; images of detectors and classifiers."""
SHARE, LEAST = 0.5, 4 * 10**9
"""Estimated operations of all large sizes together, as a share of the small cases', and at least of one of them.
Two cores verify 1e9 to 3e9 operations a second of transformers of 2 and 6 layers (2026-11)."""
REFUSALS: tuple[type[Exception], ...] = (ModelError, *sessions.ORT_ERRORS)
"""Exceptions of a session that does not open or run."""
LIMITED = ("(--time)", "(--memory)")
"""How the reason ends if a limit of the run omitted a case: then no smaller one is tried instead."""
REFUSED = "the original refuses it"
"""Why a size was not run that ONNX Runtime rejects."""
CONSTANTS_SHOWN = 4
"""Large constants named in the report if no values near them were run."""
HARDLY = 2.0
"""A case with hardly more operations than the largest small one is run in any case."""
HEADROOM, HEADROOM_HALF = 2.0**8, 4.0
"""Every value of the reference stays below the type's maximum by this factor: a different operation order may multiply
first where the original divides first."""


class LargeCases:
    """The large cases of one verification, and which of them were not run."""

    def __init__(
        self,
        comparison: Comparison,
        specs: Sequence[InputSpec],
        seed: int,
        progress: Progress,
        costs: CaseCosts,
    ) -> None:
        self.comparison, self.specs, self.seed, self.show, self._costs = comparison, specs, seed, progress, costs
        self.kinds = free_dimensions(specs, {})
        self.small = [c for c in comparison.cases if not c.note]
        self.not_run: list[str] = []
        self._base = max(self.small, key=lambda c: _elements(c.shapes), default=None)

    def run(
        self,
        requested: Shapes,
        shapes: Shapes,
        constants: Sequence[float] = (),
        reload: Callable[[], onnx.ModelProto] | None = None,
    ) -> tuple[str, ...]:
        """Run the cases; return which were not run, and why. `requested` are the sizes requested by the user, `shapes`
        all known ones.

        `constants` are the large ones of the model, and `reload` loads it, to see which values they are combined with.
        """
        if self.small:
            names = free_dimensions(self.specs, requested)
            kinds = list(dict.fromkeys(names.values()))
            # Cases that the time excluded count as well: it must not change which sizes are run.
            small = [self._costs.operations(c.shapes) for c in self.comparison.cases if _accepted(c)] if kinds else []
            most = max(SHARE * sum(small) / max(len(kinds), 1), HARDLY * max(small, default=0), LEAST)
            for kind in kinds:
                self._size(kind, [n for n, k in names.items() if k == kind], shapes, most)
            judging = self.comparison.judging
            # User tolerances apply to values that the user knows. If a session may use TF32, a softmax of large scores
            # is a selection that depends on rounding.
            if not judging.tolerances.rtol and not judging.tolerances.atol and not judging.rounding:
                self._values()
                self._bounds(constants)
                if constants and reload is not None:
                    self._computed_bounds(reload())
        return tuple(self.not_run)

    def _size(self, kind: str, names: Sequence[str], shapes: Shapes, most: float) -> None:
        """Run one case of at most so many operations in which all dimensions of a kind are large and the others as
        small as possible."""
        sets = [dimensions(self.specs, c.shapes) for c in self.comparison.cases if _accepted(c)]
        usual = max(one[n] for one in sets for n in names)
        smallest = min(sets, key=lambda one: _small(one, self.kinds, names))
        tied = _tied(sets, names)
        why = ""
        for size in (s for s in LADDERS[kind] if s > usual):
            chosen = {**smallest, **dict.fromkeys(names, size)}
            # The state of a recurrent model has the same batch as its input, under another name.
            for sizes in (chosen, *([chosen | dict.fromkeys(tied, size)] if tied else [])):
                case = cases(self.specs, (self.seed,), {**shapes, **{n: (s,) for n, s in sizes.items()}})[0]
                work = self._costs.operations(case.shapes)
                if work > most:
                    why = f"{size} takes about {_millions(work)} operations, and may take {_millions(most)}; "
                    why += f"--shape {names[0]}={size} runs it"
                    break
                why = self._try(case, memory=self._costs.memory(case.shapes))
                if not why:
                    return
                if why != REFUSED:
                    break
            if why.endswith(LIMITED):
                break
        if why:
            self.not_run.append(f"no {kind} above {usual} ({', '.join(names)}): {why}")

    def _values(self) -> None:
        """Run one case of large numbers, the largest for which the original is as accurate as in the small cases."""
        tops = large_tops(self.specs)
        good = {r.owner for r in self.comparison.rows if r.verdict == "ok" and not r.measure.empty}
        if not tops or not good:
            return
        half = any(s.array_type.itemsize == 2 for s in self.specs if s.array_type.kind in "fV")
        types = [s.array_type for s in self.specs if s.array_type.kind in "fV"] or [np.dtype(np.float32)]
        bound = min(float_type(t).largest for t in types) / (HEADROOM_HALF if half else HEADROOM)
        shapes = min((c.shapes for c in self.small), key=lambda s: _small(dimensions(self.specs, s), self.kinds))
        why = ""
        for top in tops:
            case = large_case(self.specs, self.seed, shapes, top)
            if not self._finite(case, good):
                why = f"the original gives no finite numbers, with magnitudes up to 2^{top}"
                continue
            why = self._try(case, bound, good)
            if not why:
                return
            if why.endswith(LIMITED):
                break
        self.not_run.append(f"no large values: {why}")

    def _bounds(self, constants: Sequence[float]) -> None:
        """Run one case of numbers near the large constants of the model."""
        base = self._base.made if self._base is not None else None
        if base is None or not constants or not any(s.array_type.kind in "fV" for s in self.specs):
            return
        good = {r.owner for r in self.comparison.rows if r.verdict == "ok" and not r.measure.empty}
        why = self._try(case_near_constants(base, constants), good=good)
        if why:
            listed_constants = ", ".join(f"{c:g}" for c in constants[:CONSTANTS_SHOWN]) + ", ..." * (
                len(constants) > CONSTANTS_SHOWN
            )
            self.not_run.append(f"no values near the constants {listed_constants}: {why}")

    def _computed_bounds(self, model: onnx.ModelProto) -> None:
        """Run a case for each computed value that is combined with a large constant, of numbers that bring it there."""
        opened = without_weights(model, lambda t: t if math.prod(t.dims) <= SMALL_CONSTANT else None)
        try:
            normalize(opened)
        except ModelError as error:
            self.not_run.append(f"no values near the large constants that computed values meet: {first_line(error)}")
            return
        hoisted = hoist_bodies(opened)
        sites = bound_sites(opened)
        normal = [c.made for c in self.small if c.name == "normal" and c.made is not None]
        if not sites or not normal:
            return
        base = max(normal, key=lambda c: _elements(c.shapes))
        good = {r.owner for r in self.comparison.rows if r.verdict == "ok" and not r.measure.empty}
        missed: dict[str, list[str]] = {}
        # What is hoisted from a branch may fail where that is not taken, and then tells nothing of the others.
        alone = [[s] for s in sites if s.value in hoisted]
        together = [s for s in sites if s.value not in hoisted]
        for group in filter(None, (together, *alone)):
            try:
                with computing(model, [s.value for s in group], opened) as reduced:
                    session = sessions.low_memory_session(reduced, [sessions.CPU])
                self._reach(session, group, base, good, missed)
            except REFUSALS as error:
                missed.setdefault(first_line(error), []).extend(s.value for s in group)
        for why, names in missed.items():
            listed_values = ", ".join(f"'{n}'" for n in dict.fromkeys(names))
            meet = agreeing({*names}, "meets", "meet")
            self.not_run.append(f"no values near the large constants that {listed_values} {meet}: {why}")

    def _reach(
        self, session: Any, sites: Sequence[BoundSite], base: Case, good: set[str], missed: dict[str, list[str]]
    ) -> None:
        """Run the cases of values that a session gives; enter those for which there are none, by the reason."""
        # A single row is brought to either side of the constant.
        rotations = (0, 1) if any(shape[:1] == (1,) for shape in base.shapes.values()) else (0,)
        for site, rotation in itertools.product(sites, rotations):
            case = case_reaching(base, site, partial(_value_of, session, site.value), rotation)
            why = "no scale of the inputs gives them" if case is None else self._try(case, good=good)
            if why:
                missed.setdefault(why, []).append(site.value)

    def _finite(self, case: Case, outputs: set[str]) -> bool:
        names = [r.output for r in self.comparison.rows if r.owner in outputs and r.dtype.startswith(FLOATS)]
        try:
            values = sessions.tensors(self.comparison.original.session, case.make(), list(dict.fromkeys(names)) or None)
        except sessions.ORT_ERRORS:
            return False
        return all(np.isfinite(x.astype(np.float64)).all() for n, x in values.items() if n in names)

    def _try(self, case: Case, bound: float = math.inf, good: set[str] | None = None, memory: int = 0) -> str:
        """Run a case; return why it was not run, which ends with LIMITED if the time or the memory excludes it.

        `memory`: bytes that it needs, if these are more than the small cases'.
        """
        self.show(f"{case.name} {shapes_text(case)}", 0, 1)
        limits = self.comparison.limits
        if memory > limits.memory:
            return f"about {gigabytes(memory)}, and it may take {gigabytes(limits.memory)} (--memory)"
        if limits.over:
            return limits.used_up

        def keep(rows: Sequence[OutputRow]) -> bool:
            if any(r.verdict == "mismatch" for r in rows):
                return True
            judged = {r.owner for r in rows if r.verdict == "ok" and not r.measure.empty}
            return good is None or (bool(judged) and good <= judged)

        why = try_case(self.comparison, case, limits.seconds - limits.spent, keep, bound)
        if why == NOT_INFORMATIVE:
            return "the original's own error is too large there"
        return REFUSED if why.startswith(REFUSED) else why.removeprefix(LEFT_OUT)


def _value_of(session: Any, name: str, inputs: Mapping[str, Array]) -> Array:
    return sessions.run(session, inputs, [name])[name]


def dimensions(specs: Sequence[InputSpec], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the dynamic dimensions by name and their sizes in a case."""
    sizes = {}
    for spec in specs:
        # An absent input has no shape, nor have the entries of an empty sequence.
        for axis, (dim, size) in enumerate(zip(spec.shape, shapes.get(spec.name, ()), strict=False)):
            name = dimension(spec, axis, dim)
            if name is not None:
                sizes[name] = size
    return sizes


def sizes_run(specs: Sequence[InputSpec], ran: Sequence[Mapping[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """Return the values of each dynamic dimension in the cases that were run, in ascending order."""
    sizes_by_name: dict[str, set[int]] = {}
    for shapes in ran:
        for name, size in dimensions(specs, shapes).items():
            sizes_by_name.setdefault(name, set()).add(size)
    return {name: tuple(sorted(sizes)) for name, sizes in sizes_by_name.items()}


def _small(sizes: Mapping[str, int], kinds: Mapping[str, str], without: Sequence[str] = ()) -> tuple[bool, bool, int]:
    """Return a sort key by size except for some dimensions: sets without elements come last, sequences of length 1
    before them."""
    other_sizes = {name: size for name, size in sizes.items() if name not in without}
    one = any(size == 1 and kinds.get(name) != "batch" for name, size in other_sizes.items())
    return 0 in other_sizes.values(), one, math.prod(other_sizes.values())


def _tied(sets: Sequence[Mapping[str, int]], names: Sequence[str]) -> list[str]:
    """Return the other dimensions that had the same size as one of these in every case."""
    return [
        other
        for other in (sets[0] if sets else ())
        if other not in names and any(all(one[other] == one[n] for one in sets) for n in names)
    ]


def _accepted(case: CaseRow) -> bool:
    """Return whether the original accepts a case, or was not asked for want of time or memory."""
    return not case.note or case.note.startswith(LEFT_OUT)


def _millions(operations: float) -> str:
    return f"{operations / 1e6:,.0f} million"


def _elements(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return max(sum(map(math.prod, shapes.values())), 1)
