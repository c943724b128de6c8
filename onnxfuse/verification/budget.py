"""The promise in numbers: the fused error against truth is at most twice the original's own, plus one rounding step.

Error is measured in two ways, and the promise holds for both:

*largest*: the largest absolute error of the tensor. One rounding step is that of the output type at the true value of
the element. Twice the *tensor's* largest original error, not the element's: the error of one element is luck.
*typical*: the 95th percentile of the errors, each in rounding steps at its own true value. It catches what hides below
the rounding of the largest elements: a tanh GELU in place of erf in float16, a wrong epsilon, a small missing bias.
A percentile because the largest error in steps belongs to whichever element is closest to zero; and without those
whose true value is below one rounding step of the median: they are what a cancellation leaves, and could as well be 0.

The original's own error can be small by luck in an output of few elements. So it is the worst of several: of runs of
the original on inputs that differ by at most one rounding step, and, as a share of the largest true value, of all
cases of the same kind.

What cannot be judged is left out, and counted. Where truth and original are both not finite, or truth is beyond the
range of the type, the fused value may follow either; where both are finite it must be. Whole numbers must be equal,
except where the original itself differs from the truth, or from itself on nudged inputs (a tie of ArgMax).
A float32 or bfloat16 result below the smallest normal number may be flushed to zero, as GPUs do.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.verification.floats import float_type

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FACTOR = 2.0
"""How many times the original's own error the fused error may be."""
PERCENTILE = 95.0
"""The typical error is this percentile of the errors in rounding steps."""
TYPICAL_FROM = 100
"""Elements from which on the typical error is judged: five lie beyond the percentile."""
BLUNT = 0.1
"""An original whose own error is more than this share of the largest value proves nothing about another one."""

CUSTOMARY_RTOL = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-9}
"""The relative tolerance that is reported with the smallest absolute tolerance that passes beside it."""


@dataclass(frozen=True)
class Measure:
    """One output in one case, measured."""

    elements: int
    """Elements of the output."""
    compared: int
    """Elements that could be judged."""
    max_abs: float
    """Largest difference of fused and original."""
    max_rel: float
    """Largest difference of fused and original, as a share of the original; infinite where that is zero."""
    cosine: float
    """Cosine of the angle between fused and original."""
    rtol: float
    """Customary relative tolerance of the type."""
    atol: float
    """With `rtol`, the smallest absolute tolerance with which numpy.testing.assert_allclose(fused, original) passes."""
    scale: float
    """Largest finite true value."""
    own: float
    """Largest error of the original against truth."""
    own_typical: float
    """Typical error of the original, in rounding steps."""
    error: float
    """Error of the fused model against truth at `where`."""
    step: float
    """The rounding step of the type at the true value at `where`."""
    typical: float
    """Typical error of the fused model, in rounding steps; 0 where there are too few elements to speak of one."""
    where: tuple[int, ...]
    """The element with the largest error beyond its rounding step, or the first one that breaks a law."""
    fused: float
    """The fused value there."""
    original: float
    """The original's value there."""
    truth: float
    """The true value there."""
    broken: str = ""
    """A law that holds without any tolerance and is broken at `where`."""

    @property
    def budget(self) -> float:
        """The largest error that is allowed at `where`."""
        return FACTOR * self.own + self.step

    @property
    def typical_budget(self) -> float:
        """The largest typical error that is allowed, in rounding steps."""
        return FACTOR * self.own_typical + 1.0

    @property
    def blunt(self) -> bool:
        """Whether the original's own error is too large to judge anything by it."""
        return self.own > BLUNT * self.scale and self.own > self.step

    @property
    def fault(self) -> str:
        """What is wrong, in words; empty where the promise holds."""
        if self.broken:
            return self.broken
        if self.error > self.budget:
            return f"error {self.error:.3g}, allowed {self.budget:.3g}"
        if self.typical > self.typical_budget:
            return f"typical error {self.typical:.3g} rounding steps, allowed {self.typical_budget:.3g}"
        return ""

    @property
    def severity(self) -> float:
        """How much of the budget is used; above 1 is a fault."""
        if self.broken:
            return float("inf")
        largest = self.error / self.budget if self.budget else float(self.error > 0)
        return max(largest, self.typical / self.typical_budget)


def measure(fused: Array, originals: list[Array], truth: Array) -> Measure:
    """Return the measure of `fused` beside the original's outputs, the first on the inputs themselves, and `truth`."""
    original = originals[0]
    if fused.shape != original.shape or fused.dtype != original.dtype:
        fault = f"is {fused.dtype}{list(fused.shape)}, the original gives {original.dtype}{list(original.shape)}"
        return replace(NOTHING, elements=original.size, broken=fault)
    if truth.shape != original.shape:
        fault = f"has shape {list(original.shape)}, the truth has {list(truth.shape)}"
        return replace(NOTHING, elements=original.size, broken=fault)
    if original.size == 0:
        return NOTHING
    if original.dtype.kind in "biuSUO":
        return _measure_exact(fused, originals, truth)
    return _measure_floats(fused, originals, truth)


def pooled(measures: list[Measure]) -> list[Measure]:
    """Return the measures of one output in cases of one kind, each with the worst own error among them."""
    relative = max((m.own / m.scale for m in measures if m.scale > 0), default=0.0)
    typical = max((m.own_typical for m in measures), default=0.0)
    return [replace(m, own=max(m.own, relative * m.scale), own_typical=max(m.own_typical, typical)) for m in measures]


def rounding_step(truth: Floats | np.float64, dtype: np.dtype[Any]) -> Floats:
    """Return the distance of neighbouring numbers of `dtype` at the values of `truth`."""
    facts = float_type(dtype)
    exponent = np.where(truth == 0, facts.lowest_exponent, np.frexp(truth)[1] - 1)
    steps: Floats = np.ldexp(1.0, np.maximum(exponent, facts.lowest_exponent) - facts.digits)
    return steps


NOTHING = Measure(0, 0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (), 0.0, 0.0, 0.0)
"""The measure of an output without elements."""


def _measure_floats(fused: Array, originals: list[Array], truth: Array) -> Measure:
    dtype, shape = originals[0].dtype, originals[0].shape
    facts = float_type(dtype)
    f, t, o = _flat(fused), _flat(truth), _flat(originals[0])
    limit = facts.largest * (1 + facts.eps / 4)
    t = np.where(np.abs(t) > limit, np.copysign(np.inf, t), t)
    known = np.isfinite(t)
    judged = known & np.isfinite(f)

    base = _difference(f, o, dtype)
    broken = _broken(f, o, t)
    if broken is not None:
        index, law = broken
        return replace(base, compared=int(judged.sum()), **_at(index, shape, f, o, t), broken=law)
    if not judged.any():
        return base

    t = np.where(known, t, 0.0)
    step = rounding_step(t, dtype) + (0.0 if dtype == np.float16 else facts.tiny)
    scale = float(np.abs(t).max())
    weighty = np.abs(t) >= rounding_step(np.median(np.abs(t[t != 0])), dtype) if t.any() else np.zeros(t.size, bool)
    errors = [_Error.of(np.abs(x - t), known & np.isfinite(x), step, weighty) for x in map(_flat, originals)]
    error = _Error.of(np.abs(f - t), judged, step, weighty)
    return replace(
        base,
        compared=int(judged.sum()),
        scale=scale,
        own=max(e.largest for e in errors),
        own_typical=max(e.typical for e in errors),
        error=float(np.abs(f - t)[error.worst]),
        step=float(step[error.worst]),
        typical=error.typical,
        **_at(error.worst, shape, f, o, t),
    )


@dataclass(frozen=True)
class _Error:
    """The error of one run against truth."""

    largest: float
    worst: int
    """The element with the largest error beyond its rounding step."""
    typical: float

    @classmethod
    def of(cls, error: Floats, judged: Bools, step: Floats, weighty: Bools) -> "_Error":
        """Return the error over the `judged` elements; the typical one over those that are `weighty` too."""
        if not judged.any():
            return cls(0.0, 0, 0.0)
        error = np.where(judged, error, 0.0)
        counted = judged & weighty
        enough = counted.sum() >= TYPICAL_FROM
        typical = float(np.percentile(error[counted] / step[counted], PERCENTILE)) if enough else 0.0
        return cls(float(error.max()), int(np.argmax(np.where(judged, error - step, -np.inf))), typical)


def _broken(f: Floats, o: Floats, t: Floats) -> tuple[int, str] | None:
    """Return the first element where the fused value is not finite and follows neither the original nor the truth."""
    follows = np.isfinite(f) | _same(f, o) | _same(f, t)
    # Where original and truth agree on infinity or NaN, nothing else will do.
    follows &= ~(_same(o, t) & ~np.isfinite(t)) | _same(f, t)
    if follows.all():
        return None
    index = int(np.argmin(follows))
    return index, f"{f[index]:g} where the original gives {o[index]:g} and the truth is {t[index]:g}"


def _same(a: Floats, b: Floats) -> Bools:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _measure_exact(fused: Array, originals: list[Array], truth: Array) -> Measure:
    original = originals[0]
    decided = np.asarray(original == truth.astype(original.dtype))
    for sibling in originals[1:]:
        decided &= original == sibling
    wrong = (decided & (fused != original)).ravel()
    numeric = original.dtype.kind in "biu"
    f, o, t = (_flat(x) if numeric else np.zeros(x.size) for x in (fused, original, truth))
    difference = np.abs(f - o)
    result = replace(
        NOTHING,
        elements=original.size,
        compared=int(decided.sum()),
        max_abs=float(difference.max()),
        max_rel=_largest_share(difference, o),
        cosine=_cosine(f, o),
        atol=float(difference.max()),
        scale=float(np.abs(t).max()),
    )
    if not wrong.any():
        return result
    index = int(np.argmax(wrong))
    law = f"{int(wrong.sum())} of {wrong.size} whole values differ" if numeric else "the strings differ"
    return replace(result, **_at(index, original.shape, f, o, t), broken=law)


def _difference(f: Floats, o: Floats, dtype: np.dtype[Any]) -> Measure:
    both = np.isfinite(f) & np.isfinite(o)
    rtol = CUSTOMARY_RTOL.get(dtype.name, 1e-2)
    result = replace(NOTHING, elements=f.size, rtol=rtol)
    if not both.any():
        return result
    difference = np.abs(f[both] - o[both])
    return replace(
        result,
        max_abs=float(difference.max()),
        max_rel=_largest_share(difference, o[both]),
        cosine=_cosine(f[both], o[both]),
        atol=float(np.maximum(difference - rtol * np.abs(o[both]), 0.0).max()),
    )


def _at(index: int, shape: tuple[int, ...], f: Floats, o: Floats, t: Floats) -> dict[str, Any]:
    where = tuple(int(i) for i in np.unravel_index(index, shape))
    return {"where": where, "fused": float(f[index]), "original": float(o[index]), "truth": float(t[index])}


def _largest_share(difference: Floats, of: Floats) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(difference == 0, 0.0, difference / np.abs(of))
    return float(share.max())


def _cosine(a: Floats, b: Floats) -> float:
    largest = max(float(np.abs(a).max()), float(np.abs(b).max()))
    if largest == 0:
        return 1.0
    a, b = a / largest, b / largest
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return min(1.0, float(a @ b) / norms) if norms else 0.0


def _flat(x: Array) -> Floats:
    return x.astype(np.float64).ravel()
