"""The error budget: the fused model's error is at most twice the original's own plus one rounding step.

Both errors are measured against the reference, in two ways, and the budget must hold for both:

*largest*: the largest absolute error of the tensor. One rounding step is one ulp of the output type at the true value
of the element. The bound is twice the *tensor's* largest original error, not the element's, because the error of one
element is chance.

*typical*: the 95th percentile of the errors, each in rounding steps at its own true value. It detects faults below the
rounding of the largest elements: a tanh GELU in place of erf in float16, a wrong epsilon, a small missing bias. A
percentile, because the largest error in steps belongs to whichever element is closest to zero; elements whose true
value is below one rounding step of the median are excluded, because they result from cancellation and could as well be
0.

In an output of few elements the original's own error can be small by chance. So it is the worst of several runs: on
inputs perturbed by at most one ulp and, if the fused model still exceeds its budget, with errors drawn for sums in
other orders, and on nearby inputs, relative to the largest true value. No case widens the budget of another.

Elements that cannot be judged are excluded, and counted. Where reference and original are both not finite, or the
reference is beyond the range of the type, the fused value may follow either; where both are finite it must be finite.
An original without any finite element has no own error: an attention whose logits exceed float16 is NaN everywhere on a
GPU, while the fused one holds them in float32. Integers must be equal, except where the original itself differs from
the reference, or from itself on perturbed inputs (a tie of ArgMax), and where no more of them differ than in each run
of the original. Outputs equal to the original's in every element pass, even if nothing can be judged. A float32 or
bfloat16 result below the smallest normal number may be flushed to zero, as GPUs do.

Of an output that the model rounds to multiples of a step (`quantized_outputs`) no element may be more than one step
from the original and the reference, and 99.9% must be the same: what lies in the middle of two steps is rounded to
either. An element one step off is judged after it is moved by that step. Which elements are in the middle depends on
the rounding of what they are computed from: a step that any run of the original gives is right, and a tie of rounding.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from onnxfuse.support.plurals import agreeing, plural
from onnxfuse.verification.run.floats import float_type
from onnxfuse.verification.tolerance.metrics import Quantiles, chunks, difference
from onnxfuse.verification.tolerance.output_error import NOTHING, Measure

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PERCENTILE = 95.0
"""The typical error is this percentile of the errors in rounding steps."""
TYPICAL_FROM = 100
"""Smallest element count for a typical error: five elements lie beyond the percentile."""
SUSPICIOUS, SUSPICIOUS_HALF = 1e-3, 3e-2
"""Errors beyond this share of the largest value trigger a check of the reference: ten thousand rounding steps in
float32, thirty in float16, more than the original's rounding usually causes."""
LUCKY = 0.01
"""Largest number of an output's integers that may differ by a rounding that no run of the original shows."""

TIES = 1e-3
"""Largest share of the elements rounded to multiples of a step that may be one step apart; of few elements one may."""

NanPolicy = Literal["equal", "fail"]
"""Treatment of a NaN or infinity that the original yields, too: accepted, or a fault."""


def measure(
    fused: Array,
    originals: Sequence[Array],
    reference: Array,
    *,
    perturbed: Sequence[Array] = (),
    top_k: Sequence[int] = (),
    nan: NanPolicy = "equal",
    unsure: bool = False,
    step: float = 0.0,
    reach: float = 0.0,
    float8: float = 0.0,
) -> Measure:
    """Measure `fused` against the original's outputs, the first on the inputs themselves, and `reference`.

    `perturbed` are further outputs of the original. They determine how large its largest error can be, but not its
    typical error: that is no chance, and perturbing every input by an ulp makes it larger than rounding does. `unsure`
    is a field of the measure. `step`: the model rounds the output to multiples of it; 0 if it does not. `float8`: it
    rounds the output to float8 numbers times this scale; 0 if it does not. Ties inside the model move it by `reach`.
    `top_k` is that of `metrics.difference`. With `nan="fail"` a NaN or an infinity in the fused output is a fault even
    if the original has it too.
    """
    original = originals[0]
    if fused.shape != original.shape or fused.dtype != original.dtype:
        fault = f"is {fused.dtype}{list(fused.shape)}, the original gives {original.dtype}{list(original.shape)}"
        return replace(NOTHING, elements=original.size, broken=fault, unlike=True)
    if original.size == 0:
        return NOTHING
    base = replace(
        NOTHING, elements=original.size, difference=difference(fused, original, top_k), unsure=unsure,
        identical=_identical(fused, original), eps=_eps(original.dtype), grid=step or float8,
        reach=0.0 if step or float8 else reach,
    )  # fmt: skip
    # Perturbation may change the output's size, as through the scales of a Resize. Such a run is not comparable.
    originals, perturbed = ([x for x in runs if x.shape == original.shape] for runs in (originals, perturbed))
    if reference.shape != original.shape:
        return base  # The output's size depends on rounding, as the boxes above a threshold. Nothing can be judged.
    if original.dtype.kind in "iu" and step:
        return _measure_steps(base, fused, [*originals, *perturbed], reference, 1 + math.ceil(reach))
    if original.dtype.kind in "biuSUO":
        return _measure_exact(base, fused, [*originals, *perturbed], reference)
    grid = _Float8Grid(float8) if float8 else _Grid(step, 1 + math.ceil(reach / step) if step else 0)
    measured = _measure_floats(base, fused, originals, perturbed, reference, grid)
    if grid.step and not measured.broken:
        measured = _with_ties(measured, fused, [*originals, *perturbed, reference], grid)
    return _without_nan(measured, fused, originals[0], reference) if nan == "fail" and not measured.broken else measured


def with_worst_error(measure: Measure, neighbors: Sequence[Measure]) -> Measure:
    """Return the measure with the worst own error of the original here or nearby, as a small one may be chance.

    Neighbors in which it is blunt are not comparable, and widen no budget.
    """
    comparable = [m for m in neighbors if m.compared and not m.blunt]
    share = max((m.own / m.scale for m in comparable if m.scale > 0), default=0.0)
    typical = max((m.own_typical for m in comparable), default=0.0)
    return replace(measure, own=max(measure.own, share * measure.scale), own_typical=max(measure.own_typical, typical))


def off(original: Array, reference: Array) -> float:
    """Return the distance of an output from the reference: relative to its largest value; for integers, the share that
    differs.

    Infinite if the shapes differ; strings are not compared.
    """
    if original.shape != reference.shape:
        return math.inf
    if original.dtype.kind not in "fVbiu":
        return 0.0
    largest, scale, different = 0.0, 0.0, 0
    for _, o, t in _wide_pieces(original, reference):
        finite = np.isfinite(o) & np.isfinite(t)
        error = np.abs(o[finite] - t[finite])
        largest, scale = max(largest, float(error.max(initial=0))), max(scale, float(np.abs(t[finite]).max(initial=0)))
        different += int((error != 0).sum())
    if original.dtype.kind in "biu":
        return different / max(original.size, 1)
    return largest / scale if scale else math.inf if largest else 0.0


def exceeds_rounding(original: Array, reference: Array) -> bool:
    """Return whether an output of the original is further from the reference than rounding usually explains."""
    if original.shape != reference.shape or original.dtype.kind not in "fVbiu":
        return original.shape != reference.shape
    half = original.dtype.kind in "fV" and original.dtype.itemsize == 2
    return off(original, reference) > (SUSPICIOUS_HALF if half else SUSPICIOUS)


def rounding_step(values: Floats | np.float64, dtype: np.dtype[Any]) -> Floats:
    """Return the distance of adjacent numbers of `dtype` at the values of `values`."""
    facts = float_type(dtype)
    exponent = np.where(values == 0, facts.lowest_exponent, np.frexp(values)[1] - 1)
    steps: Floats = np.ldexp(1.0, np.maximum(exponent, facts.lowest_exponent) - facts.digits)
    return steps


def _measure_floats(
    base: Measure,
    fused: Array,
    originals: Sequence[Array],
    perturbed: Sequence[Array],
    reference: Array,
    grid: "_Grid | _Float8Grid",
) -> Measure:
    """Measure floats in two chunked passes: statistics of the reference first, then the errors, apart from steps of the
    `grid`."""
    dtype, shape = originals[0].dtype, originals[0].shape
    facts = float_type(dtype)
    survey = _Survey(limit=facts.largest * (1 + facts.eps / 4))
    for start, f, o, t in _wide_pieces(fused, originals[0], reference):
        broken = survey.add(f, o, t)
        if broken is not None:
            index, law = broken
            return replace(
                base, compared=survey.judged, **_at(start + index, shape, fused, originals[0], reference), broken=law
            )
    if not survey.judged:
        return base
    median = survey.magnitudes.at(0.5)
    smallest = float(rounding_step(np.float64(median), dtype)) if median else np.inf
    error, run_errors = _RunError(), [_RunError() for _ in (*originals, *perturbed)]
    for start, f, t, *runs in _wide_pieces(fused, reference, *originals, *perturbed):
        t = survey.clipped(t)
        finite = np.isfinite(t)
        t = np.where(finite, t, 0.0)
        step = rounding_step(t, dtype) + (0.0 if dtype == np.float16 else facts.tiny)
        weighty = np.abs(t) >= smallest
        error.add(start, grid.moved(f, t), t, finite, step, weighty)
        for one, x in zip(run_errors, runs, strict=True):
            one.add(start, grid.moved(x, t), t, finite, step, weighty)
    location = _at(error.where, shape, fused, originals[0], reference)
    if not any(e.judged for e in run_errors):
        return replace(base, scale=survey.scale, **location)
    return replace(
        base,
        compared=survey.judged,
        scale=survey.scale,
        own=max(e.largest for e in run_errors),
        own_typical=max(e.typical for e in run_errors[: len(originals)]),
        error=error.error,
        step=error.step,
        typical=error.typical,
        **location,
    )


class _Survey:
    """Statistics of the reference: largest value, typical magnitude, number of elements that can be judged."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.judged = 0
        self.scale = 0.0
        self.magnitudes = Quantiles()

    def clipped(self, t: Floats) -> Floats:
        """Return the reference with values beyond the type's range as infinity."""
        return np.where(np.abs(t) > self.limit, np.copysign(np.inf, t), t)

    def add(self, f: Floats, o: Floats, t: Floats) -> tuple[int, str] | None:
        """Add one chunk; return the first element in it that breaks a law, and the law."""
        t = self.clipped(t)
        finite = np.isfinite(t)
        self.judged += int((finite & np.isfinite(f)).sum())
        magnitudes = np.abs(t[finite])
        self.scale = max(self.scale, float(magnitudes.max(initial=0.0)))
        self.magnitudes.add(magnitudes[magnitudes != 0])
        return _broken(f, o, t)


class _RunError:
    """The error of one run against the reference, accumulated over chunks."""

    def __init__(self) -> None:
        self.judged = False  # Whether any element was finite in both the run and the reference.
        self.largest = 0.0
        self.where, self.error, self.step = 0, 0.0, 0.0
        self._beyond = -np.inf
        self._typical = Quantiles()

    def add(self, start: int, x: Floats, t: Floats, finite: Bools, step: Floats, weighty: Bools) -> None:
        """Add one chunk: the run's values, the reference, the elements to judge, the rounding steps."""
        judged = finite & np.isfinite(x)
        if not judged.any():
            return
        self.judged = True
        error = np.where(judged, np.abs(x - t), 0.0)
        excess = np.where(judged, error - step, -np.inf)
        worst = int(np.argmax(excess))
        if excess[worst] > self._beyond:
            self._beyond, self.where = float(excess[worst]), start + worst
            self.error, self.step = float(error[worst]), float(step[worst])
        self.largest = max(self.largest, float(error.max()))
        counted = judged & weighty
        self._typical.add(error[counted] / step[counted])

    @property
    def typical(self) -> float:
        """The 95th percentile in rounding steps; 0 if there are too few elements for one."""
        return self._typical.at(PERCENTILE / 100) if self._typical.count >= TYPICAL_FROM else 0.0


def _eps(dtype: np.dtype[Any]) -> float:
    return float_type(dtype).eps if dtype.kind in "fV" else 0.0


def _identical(fused: Array, original: Array) -> bool:
    if original.dtype.kind in "biuSUO":
        return bool(np.array_equal(fused, original))
    some = False
    for _, f, o in _wide_pieces(fused, original):
        if not _same(f, o).all():
            return False
        some = some or bool(np.isfinite(o).any())
    return some


def _wide_pieces(*arrays: Array) -> Iterator[tuple[Any, ...]]:
    for start, *pieces in chunks(*arrays):
        yield (start, *(x.astype(np.float64) for x in pieces))


def _without_nan(measured: Measure, fused: Array, original: Array, reference: Array) -> Measure:
    """Return the measure, broken if the fused output is not finite."""
    for start, f in _wide_pieces(fused):
        wrong = ~np.isfinite(f)
        if wrong.any():
            index = int(np.argmax(wrong))
            law = f"{f[index]:g} in the fused output, and --nan fail was asked for"
            return replace(
                measured, **_at(start + index, original.shape, fused, original, reference), broken=law, asked=True
            )
    return measured


def _broken(f: Floats, o: Floats, t: Floats) -> tuple[int, str] | None:
    """Return the first element where the fused value is not finite and follows neither the original nor the
    reference."""
    follows = np.isfinite(f) | _same(f, o) | _same(f, t)
    # Where original and reference agree on infinity or NaN, the fused value must be the same.
    follows &= ~(_same(o, t) & ~np.isfinite(t)) | _same(f, t)
    if follows.all():
        return None
    index = int(np.argmin(follows))
    return index, f"{f[index]:g} where the original gives {o[index]:g} and the truth is {t[index]:g}"


def _same(a: Floats, b: Floats) -> Bools:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


@dataclass(frozen=True)
class _Grid:
    """The steps to which the model rounds an output."""

    step: float
    """0 if it does not."""
    most: int
    """Number of steps that a value may be off."""

    def moved(self, x: Floats, t: Floats) -> Floats:
        """Return values moved by whole steps towards `t` where they are nearer to another step."""
        if not self.step:
            return x
        return np.where(self.beside(x, t), x - self.step * np.rint((x - t) / self.step), x)

    def beside(self, x: Floats, t: Floats) -> Bools:
        """Return where values are off by steps, of which they may be."""
        off = np.abs(x - t)
        return np.asarray((off > self.step / 2) & (off < (self.most + 0.5) * self.step))


@dataclass(frozen=True)
class _Float8Grid:
    """The numbers of float8e4m3fn, times a scale, to which the model rounds an output."""

    step: float
    """The scale."""

    def moved(self, x: Floats, t: Floats) -> Floats:
        """Return values as `t` where they are a neighboring number."""
        return np.where(self.beside(x, t), t, x)

    def beside(self, x: Floats, t: Floats) -> Bools:
        """Return where values are such numbers, and next to that of `t`."""
        own, other = self._number(x), self._number(t)
        exact = np.abs(x / self.step - own.astype(np.float64)) <= np.abs(x / self.step) * ON_FLOAT8
        return np.asarray(exact & (np.abs(_order(own) - _order(other)) == 1))

    def _number(self, x: Floats) -> Array:
        return np.clip(x / self.step, -MOST_FLOAT8, MOST_FLOAT8).astype(ml_dtypes.float8_e4m3fn)


MOST_FLOAT8 = 448.0
"""The greatest float8e4m3fn."""
ON_FLOAT8 = 2.0**-7
"""Relative distance up to which a value is a float8 number times a scale: a bfloat16 product is rounded to 2^-8."""


def _order(numbers: Array) -> npt.NDArray[np.int64]:
    """Return the position of each float8 number among all of them; neighbors differ by 1, and both zeros are 0."""
    bits = numbers.view(np.uint8).astype(np.int64)
    return np.where(bits >= 128, 128 - bits, bits)


def _with_ties(measured: Measure, fused: Array, runs: Sequence[Array], grid: "_Grid | _Float8Grid") -> Measure:
    """Return the measure of floats on a grid, broken if too many are steps from every run and the reference."""
    apart = other = 0
    for _, f, *every in _wide_pieces(fused, *runs):
        beside = [grid.beside(f, x) for x in every]
        apart += int(np.logical_and.reduce(beside).sum())
        other += int(beside[0].sum())
    result = replace(measured, apart=apart, ties=other - apart)
    return replace(result, broken=ties_fault(apart, fused.size))


def _measure_steps(base: Measure, fused: Array, originals: Sequence[Array], reference: Array, most: int) -> Measure:
    """Measure integers to which the model rounds, of which none may be more than `most` steps off."""
    shape, apart, other, furthest, largest, scale = fused.shape, 0, 0, 0, -1.0, 0.0
    for start, f, t, *runs in _wide_pieces(fused, reference, *originals):
        distance = np.min([np.abs(f - x) for x in (t, *runs)], axis=0)
        apart += int((distance > 0).sum())
        other += int((f != runs[0]).sum())
        scale = max(scale, float(np.abs(t).max()))
        worst = int(distance.argmax())
        if distance[worst] > largest:
            furthest, largest = start + worst, float(distance[worst])
    location = _at(furthest, shape, fused, originals[0], reference)
    law = f"{largest:g} steps apart" if largest > most else ties_fault(apart, fused.size)
    return replace(base, compared=fused.size, scale=scale, apart=apart, ties=other - apart, **location, broken=law)


def ties_fault(apart: int, elements: int) -> str:
    """Return what is wrong with so many elements one step apart, in words; empty if they may be ties of rounding."""
    allowed = max(1, int(TIES * elements))
    if apart <= allowed:
        return ""
    return f"{apart} of {plural(elements, 'quantized value')} rounded to another step, allowed {allowed}"


def _measure_exact(base: Measure, fused: Array, originals: Sequence[Array], reference: Array) -> Measure:
    """Measure integers or strings; elements that depend on rounding are excused.

    An element is decided if all runs of the original have the reference value. Some depend on rounding in only one run
    of many: the fused model may have twice as many as the original's worst run, which is meaningful if there are enough
    of them.
    """
    original = originals[0]
    true = reference.astype(original.dtype)
    deviating = np.array([(x != true).ravel() for x in originals])
    runs = deviating.sum(axis=0)
    alone = int((deviating & (runs == 1)).sum(axis=1).max()) if len(originals) > 1 else 0
    wrong = (runs == 0) & (fused != original).ravel()
    numeric = original.dtype.kind in "biu"
    scale = float(np.abs(reference.astype(np.float64)).max()) if numeric else 0.0
    result = replace(base, compared=int((runs == 0).sum()), scale=scale)
    many = int(wrong.sum())
    if many <= min(2 * alone, LUCKY * wrong.size):
        return result
    index = int(np.argmax(wrong))
    law = (
        f"{many} of {plural(wrong.size, 'whole value')} {agreeing(many, 'differs', 'differ', of=wrong.size)}"
        if numeric
        else "the strings differ"
    )
    location = (
        _at(index, original.shape, fused, original, reference)
        if numeric
        else {"where": _location(index, original.shape)}
    )
    return replace(result, **location, broken=law)


def _at(index: int, shape: tuple[int, ...], f: Array, o: Array, t: Array) -> dict[str, Any]:
    where = _location(index, shape)
    return {"where": where, "fused": float(f[where]), "original": float(o[where]), "truth": float(t[where])}


def _location(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(index, shape))
