"""Search for inputs that test more than the default ones: non-empty, finite outputs and an accurate original.

Boxes of a NonMaxSuppression, indices of a NonZero, rows of a Compress, a Resize with computed scales: generated inputs
may yield none of them, and then nothing of the output is compared. Or the original's own error is some percent, which
hides a wrong weight. So control inputs (those of few elements) are set to constants of the model and small numbers, and
data inputs are scaled up or down, made of one sign, or set to values that the model compares with; then other sizes are
tried.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from onnxfuse.support.plurals import listed
from onnxfuse.support.progress import Progress
from onnxfuse.verification.cases.planning import SEARCHING
from onnxfuse.verification.compare.case_comparison import Comparison
from onnxfuse.verification.compare.optional_cases import try_case
from onnxfuse.verification.inputs.branches import SIGNS, Change, compared_constants, selector_values
from onnxfuse.verification.inputs.inputs import Array, Case, InputSpec, Shapes, cases, sizes_of
from onnxfuse.verification.inputs.size_search import search_sizes
from onnxfuse.verification.report.rows import OutputRow
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.tensors import counts, is_empty_metadata

STEERING = 8
"""Largest element count of a control input: a threshold, a count, the scales of a Resize."""
ATTEMPTS = 256
"""Largest number of input sets that are run; those without new evidence cost one run of the original alone."""
JUDGED = 24
"""Largest number of input sets that are compared when the original's own error is the problem."""
ENOUGH = 2
"""Number of informative cases wanted per output."""
MOSTLY = 0.5
"""A search starts for an output that is blunt or undecided in more than this share of its cases."""
OTHER_SEED = 1000
"""First seed of searched inputs, beyond those that users choose."""


def _ones(x: Array) -> Array:
    return np.ones_like(x)


def _times(factor: float, x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(x.astype(np.float64) * factor).astype(x.dtype)


def _beyond_one(x: Array) -> Array:
    return (1 + np.abs(x)).astype(x.dtype)


DATA: tuple[Callable[[Array], Array], ...] = (
    *SIGNS.values(), _ones, *(partial(_times, 2.0**n) for n in (-4, -8, 3, 6, 10)), _beyond_one,
)  # fmt: skip
"""Transformations of all data inputs."""


@dataclass(frozen=True)
class MissingEvidence:
    """Outputs for which evidence is missing."""

    empty: frozenset[str]
    """Outputs of which no case had a finite element."""
    blunt: frozenset[str]
    """Outputs of which most cases were blunt because of the original's own error."""


def missing_evidence(rows: Sequence[OutputRow]) -> MissingEvidence:
    """Return the outputs for which better inputs should be searched; outputs that are already wrong need none."""
    empty, blunt = set[str](), set[str]()
    by_name: dict[str, list[OutputRow]] = {}
    for row in rows:
        by_name.setdefault(row.output, []).append(row)
    for name, output_rows in by_name.items():
        if any(r.verdict == "mismatch" for r in output_rows):
            continue
        if all(r.verdict == "undecided" and not r.measure.compared for r in output_rows):
            empty.add(name)
            continue
        nonempty = [r for r in output_rows if not r.measure.empty]
        uninformative = sum(r.verdict == "blunt" or (r.verdict == "undecided" and r.measure.too_far) for r in nonempty)
        if uninformative > MOSTLY * len(nonempty):
            blunt.add(name)
    return MissingEvidence(frozenset(empty), frozenset(blunt))


def improve_inputs(
    comparison: Comparison,
    load: Callable[[], onnx.ModelProto],
    specs: Sequence[InputSpec],
    shapes: Shapes,
    requested: Shapes,
    progress: Progress,
) -> str:
    """Run cases that provide missing evidence; return why none were found for some outputs if that is the time."""
    missing = missing_evidence(comparison.rows)
    if not comparison.rows:  # The original accepted none of the default inputs.
        missing = MissingEvidence(frozenset(o.name for o in comparison.original.session.get_outputs()), frozenset())
    if not missing.empty and not missing.blunt:
        return ""
    start, limits = comparison.limits.spent, comparison.limits
    until = min(start + SEARCHING * limits.seconds, limits.seconds)
    informative: dict[str, int] = {}
    model = load()
    judged = 0
    for case in itertools.islice(_candidates(model, specs, shapes, comparison), ATTEMPTS):
        open_ = {n for n in missing.empty | missing.blunt if informative.get(n, 0) < ENOUGH}
        if not open_:
            return ""
        if limits.spent > until:
            return _out_of_time(open_)
        still_blunt = open_ & missing.blunt
        if not _yields_finite(comparison, case, open_ & missing.empty) and not (still_blunt and judged < JUDGED):
            continue
        judged += bool(still_blunt)
        progress("which inputs show more of the outputs", len(informative), len(missing.empty | missing.blunt))
        news: set[str] = set()
        try_case(comparison, case, until - limits.spent, partial(_adds_evidence, open_, news))
        for name in news:
            informative[name] = informative.get(name, 0) + 1
    still_empty = {n for n in missing.empty if n not in informative}
    if not still_empty:
        return ""
    sizes = search_sizes(
        model,
        specs,
        requested,
        lambda case: _yields_finite(comparison, case, still_empty),
        lambda: limits.spent > until,
    )
    for case in cases(specs, (OTHER_SEED,), {**shapes, **sizes})[:ENOUGH] if sizes else ():
        try_case(comparison, _named(case), until - limits.spent, partial(_adds_evidence, still_empty, set()))
    return _out_of_time(still_empty) if limits.spent > until else ""


def _out_of_time(outputs: Collection[str]) -> str:
    return (
        f"no further inputs for {listed(sorted(outputs))}: searching them may take {SEARCHING:.0%} of the time (--time)"
    )


def _adds_evidence(open_: set[str], news: set[str], rows: Sequence[OutputRow]) -> bool:
    """Return whether rows provide missing evidence for an output, and record which."""
    news |= {r.output for r in rows if r.output in open_ and (r.sharp or r.verdict == "mismatch")}
    return bool(news) or any(r.verdict == "mismatch" for r in rows)


def _yields_finite(comparison: Comparison, case: Case, names: set[str] | frozenset[str]) -> bool:
    """Return whether the original yields a finite element of one of these outputs."""
    if not names:
        return False
    try:
        values = sessions.tensors(comparison.original.session, case.make(), sorted(names))
    except sessions.ORT_ERRORS:
        return False
    return any(
        x.size > 0
        and (x.dtype.kind not in "fV" or np.isfinite(x.astype("d")).any())
        and not (counts(n, comparison.outputs) and is_empty_metadata(x))
        for n, x in values.items()
    )


def _candidates(
    model: onnx.ModelProto, specs: Sequence[InputSpec], shapes: Shapes, comparison: Comparison
) -> Iterator[Case]:
    """Yield cases of the shapes that ran, or that are planned if none did: first other seeds, then transformed
    inputs."""
    planned = cases(specs, (OTHER_SEED, OTHER_SEED + 1), shapes)
    ran = {tuple(c.shapes.items()) for c in comparison.cases if not c.note}
    usable = [c for c in planned if tuple(c.shapes.items()) in ran] or planned
    smallest = min(usable, key=lambda c: (0 in itertools.chain(*c.shapes.values()), _elements(c)))
    largest = max(usable, key=_elements)
    yield from (_named(c) for c in (usable[0], *(s for s in (smallest, largest) if s != usable[0])))
    for change in changes(model, specs, largest):
        yield change(largest)
        if smallest.shapes != largest.shapes:
            yield change(smallest)


def changes(model: onnx.ModelProto, specs: Sequence[InputSpec], base: Case) -> Iterator[Change]:
    """Yield transformations of a case's inputs: data alone, then with control inputs, then compared values."""
    compared = sorted(compared_constants(model.graph))
    # Numbers and keys of a map belong together.
    usual = [s for s in specs if s.role.kind != "mask" and s.known_keys is None and not s.type_.startswith("map(")]
    steering = [s for s in usual if math.prod(base.shapes[s.name]) <= STEERING]
    sizes = sizes_of(specs, base.shapes)
    options = [[(s.name, v) for v in _settings(s, base.shapes[s.name], compared, sizes)] for s in steering]
    sets = [dict(chosen) for chosen in _sets(options)]
    names = frozenset(s.name for s in steering)
    yield from (partial(_changed, {}, data, frozenset()) for data in DATA)
    yield from (partial(_changed, chosen, None, names) for chosen in sets if chosen)
    if compared:
        yield partial(_changed, {}, partial(_drawn, tuple(compared)), names)
    for chosen in sets if names and len(names) < len(specs) else ():
        yield from (partial(_changed, chosen, data, names) for data in DATA)


def _sets(options: Sequence[Sequence[tuple[str, Array]]]) -> Iterator[tuple[tuple[str, Array], ...]]:
    """Yield assignments of the control inputs: all combinations if few, else the n-th setting of each."""
    if math.prod(map(len, options)) <= ATTEMPTS // 4:
        yield from itertools.product(*options)
        return
    for n in range(max(map(len, options))):
        yield tuple(one[n % len(one)] for one in options)
    for one in options:
        yield from ((pair,) for pair in one)


def _settings(
    spec: InputSpec, shape: tuple[int, ...], compared: Sequence[float], sizes: Mapping[str, int]
) -> list[Array]:
    """Return the settings of a control input: one value everywhere, or ones with larger numbers at the end."""
    dtype = spec.array_type
    if dtype.kind in "fV":
        candidates = [1.0, 2.0, 0.0, 0.5, *compared, *(v - 1 for v in compared), *(v + 1 for v in compared), 8.0, -8.0]
    else:
        candidates = [1.0, 2.0, 7.0, *selector_values(spec, compared, sizes)]
    if dtype.kind == "u":
        candidates = [v for v in candidates if v >= 0]
    settings = [np.full(shape, v).astype(dtype) for v in dict.fromkeys(candidates)]
    if len(shape) == 1 and shape[0] > 2 and dtype.kind in "fViu":
        # Scales and sizes of an image: batch and channels stay unchanged.
        outer = np.where(np.arange(shape[0]) < shape[0] - 2, 1, 2).astype(dtype)
        settings.insert(1, outer)
    return settings


def _changed(
    chosen: Mapping[str, Array], data: Callable[[Array], Array] | None, steering: frozenset[str], base: Case
) -> Case:
    return Case("sought", base.seed, base.shapes, partial(_changed_arrays, base, chosen, data, steering))


def _changed_arrays(
    base: Case, chosen: Mapping[str, Array], data: Callable[[Array], Array] | None, steering: frozenset[str]
) -> dict[str, Array]:
    arrays = {**base.make(), **chosen}
    if data is not None:
        arrays = {n: np.asarray(data(x)) if n not in steering and _is_data(x, data) else x for n, x in arrays.items()}
    return arrays


def _is_data(x: Array, data: Callable[[Array], Array]) -> bool:
    draws_values = isinstance(data, partial) and data.func is _drawn
    return x.dtype.kind in "fV" or (draws_values and x.dtype.kind in "iu")


def _drawn(values: Sequence[float], x: Array) -> Array:
    """Draw data from the constants that the model compares with, and their neighbors."""
    rng = np.random.default_rng(x.size)
    values_drawn = rng.choice(np.asarray(values), x.shape) + rng.integers(-1, 2, x.shape)
    if x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        values_drawn = np.clip(values_drawn, info.min, info.max)
    return np.asarray(values_drawn).astype(x.dtype)


def _named(case: Case) -> Case:
    return Case("sought", case.seed, case.shapes, case.make)


def _elements(case: Case) -> int:
    return sum(map(math.prod, case.shapes.values()))
