"""Search for inputs that test more than the default ones: non-empty, finite outputs and an accurate original.

Boxes of a NonMaxSuppression, indices of a NonZero, rows of a Compress, a Resize with computed scales: generated inputs
may yield none of them, and then nothing of the output is compared. Or the original's own error is some percent, which
hides a wrong weight. So control inputs (those of few elements) are set to constants of the model and small numbers, and
data inputs are scaled up or down, made of one sign, or set to values that the model compares with; then other sizes are
tried.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from onnxfuse.verification.cases.planning import SEARCHING, Progress
from onnxfuse.verification.compare.case_comparison import Comparison
from onnxfuse.verification.compare.optional_cases import try_one
from onnxfuse.verification.inputs.branches import SIGNS, Change, compared_constants, selector_values
from onnxfuse.verification.inputs.inputs import Array, Case, InputSpec, Shapes, cases, sizes_of
from onnxfuse.verification.inputs.size_search import searched
from onnxfuse.verification.report.rows import OutputRow
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.tensors import counts, holds_nothing

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
    for name, own in by_name.items():
        if any(r.verdict == "mismatch" for r in own):
            continue
        if all(r.verdict == "undecided" and not r.measure.compared for r in own):
            empty.add(name)
            continue
        seen = [r for r in own if not r.measure.empty]
        dull = sum(r.verdict == "blunt" or (r.verdict == "undecided" and r.measure.too_far) for r in seen)
        if dull > MOSTLY * len(seen):
            blunt.add(name)
    return MissingEvidence(frozenset(empty), frozenset(blunt))


def seek(
    comparison: Comparison,
    load: Callable[[], onnx.ModelProto],
    specs: Sequence[InputSpec],
    shapes: Shapes,
    said: Shapes,
    show: Progress,
) -> None:
    """Run cases that provide missing evidence, as far as some are found in time."""
    wants = missing_evidence(comparison.rows)
    if not comparison.rows:  # The original accepted none of the default inputs.
        wants = MissingEvidence(frozenset(o.name for o in comparison.plain.get_outputs()), frozenset())
    if not wants.empty and not wants.blunt:
        return
    began, limits = comparison.limits.spent, comparison.limits
    until = min(began + SEARCHING * limits.seconds, limits.seconds)
    found: dict[str, int] = {}
    model = load()
    judged = 0
    for case in itertools.islice(_candidates(model, specs, shapes, comparison), ATTEMPTS):
        open_ = {n for n in wants.empty | wants.blunt if found.get(n, 0) < ENOUGH}
        if not open_ or limits.spent > until:
            return
        dull = open_ & wants.blunt
        if not _gives(comparison, case, open_ & wants.empty) and not (dull and judged < JUDGED):
            continue
        judged += bool(dull)
        show("which inputs show more of the outputs", len(found), len(wants.empty | wants.blunt))
        news: set[str] = set()
        try_one(comparison, case, until - limits.spent, partial(_tells, open_, news))
        for name in news:
            found[name] = found.get(name, 0) + 1
    bare = {n for n in wants.empty if n not in found}
    if bare and limits.spent < until:
        sizes = searched(model, specs, said, lambda case: _gives(comparison, case, bare), lambda: limits.spent > until)
        for case in cases(specs, (OTHER_SEED,), {**shapes, **sizes})[:ENOUGH] if sizes else ():
            try_one(comparison, _named(case), max(until - limits.spent, 0.0), partial(_tells, bare, set()))


def _tells(open_: set[str], news: set[str], rows: Sequence[OutputRow]) -> bool:
    """Return whether rows provide missing evidence for an output, and record which."""
    news |= {r.output for r in rows if r.output in open_ and (r.sharp or r.verdict == "mismatch")}
    return bool(news) or any(r.verdict == "mismatch" for r in rows)


def _gives(comparison: Comparison, case: Case, names: set[str] | frozenset[str]) -> bool:
    """Return whether the original yields a finite element of one of these outputs."""
    if not names:
        return False
    try:
        values = sessions.tensors(comparison.plain, case.make(), sorted(names))
    except sessions.ORT_ERRORS:
        return False
    return any(
        x.size > 0
        and (x.dtype.kind not in "fV" or np.isfinite(x.astype("d")).any())
        and not (counts(n, comparison.outputs) and holds_nothing(x))
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
        numbers = [1.0, 2.0, 0.0, 0.5, *compared, *(v - 1 for v in compared), *(v + 1 for v in compared), 8.0, -8.0]
    else:
        numbers = [1.0, 2.0, 7.0, *selector_values(spec, compared, sizes)]
    if dtype.kind == "u":
        numbers = [v for v in numbers if v >= 0]
    found = [np.full(shape, v).astype(dtype) for v in dict.fromkeys(numbers)]
    if len(shape) == 1 and shape[0] > 2 and dtype.kind in "fViu":
        # Scales and sizes of an image: batch and channels stay unchanged.
        outer = np.where(np.arange(shape[0]) < shape[0] - 2, 1, 2).astype(dtype)
        found.insert(1, outer)
    return found


def _changed(
    chosen: Mapping[str, Array], data: Callable[[Array], Array] | None, steering: frozenset[str], base: Case
) -> Case:
    return Case("sought", base.seed, base.shapes, partial(_made, base, chosen, data, steering))


def _made(
    base: Case, chosen: Mapping[str, Array], data: Callable[[Array], Array] | None, steering: frozenset[str]
) -> dict[str, Array]:
    arrays = {**base.make(), **chosen}
    if data is not None:
        arrays = {n: np.asarray(data(x)) if n not in steering and _is_data(x, data) else x for n, x in arrays.items()}
    return arrays


def _is_data(x: Array, data: Callable[[Array], Array]) -> bool:
    drawn = isinstance(data, partial) and data.func is _drawn
    return x.dtype.kind in "fV" or (drawn and x.dtype.kind in "iu")


def _drawn(values: Sequence[float], x: Array) -> Array:
    """Draw data from the constants that the model compares with, and their neighbors."""
    rng = np.random.default_rng(x.size)
    found = rng.choice(np.asarray(values), x.shape) + rng.integers(-1, 2, x.shape)
    if x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        found = np.clip(found, info.min, info.max)
    return np.asarray(found).astype(x.dtype)


def _named(case: Case) -> Case:
    return Case("sought", case.seed, case.shapes, case.make)


def _elements(case: Case) -> int:
    return sum(map(math.prod, case.shapes.values()))
