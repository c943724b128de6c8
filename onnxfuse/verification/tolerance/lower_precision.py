"""The contract of a file in lower precision: allowed error of each output, given the original's own error.

| what | default |
|---|---|
| relative RMS error of a float output | 20 times the type's unit roundoff: 0.0098 for float16 and mixed, 0.078 for |
| | bfloat16; twice the original's own error if that is more |
| cosine to the reference | 1 - the square of that: 0.9999 for float16, 0.994 for bfloat16 |
| top-1 agreement of class scores | 0.99 of the rows; a class whose true score ties for the best agrees |
| elements of other outputs that differ | 0.01; twice the original's own share if that is more |
| elements that are finite in the reference only | none |

The scale of an output is at least the smallest normal number of its type.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.support.plurals import agreeing, plural

Array = npt.NDArray[Any]

OWN_FACTOR = 2.0
"""Allowed multiple of the original's own error, as between models of one type."""

AGREEING = 0.99
"""Share of rows whose best class must be the same."""

DIFFERING = 0.01
"""Share of the elements of an integer or boolean output that may differ."""


@dataclass(frozen=True)
class Judged:
    """The judgment of one output in one case."""

    error: float
    """Relative RMS error; for non-floats the share of elements that differ."""
    allowed: float
    own: float
    """The original's error."""
    cosine: float
    """Cosine similarity to the reference."""
    least_cosine: float
    agreement: float | None
    """Share of rows whose best class is the reference's; None if the output is not class scores."""
    broken: str = ""
    """Violations independent of the tolerance."""

    @property
    def fault(self) -> str:
        """What is wrong, in words; empty if the contract is met."""
        if self.broken:
            return self.broken
        if not self.error <= self.allowed:
            return f"relative RMS error {self.error:.3g}, allowed {self.allowed:.3g}"
        if not self.cosine >= self.least_cosine:
            return f"cosine {self.cosine:.6f} to the truth, at least {self.least_cosine:.6f}"
        if self.agreement is not None and self.agreement < AGREEING:
            return f"the best class of {self.agreement:.1%} of the rows is the truth's, at least {AGREEING:.0%}"
        return ""

    @property
    def severity(self) -> float:
        """Used share of the contract; above 1 is a fault."""
        if self.broken:
            return math.inf
        used = self.error / self.allowed if self.allowed else (math.inf if self.error else 0.0)
        return max(used, 1.01) if self.fault else used


def judge(
    actual: Array, original: Array, reference: Array, tolerance: float, *, tiny: float, scores: bool = False
) -> Judged:
    """Judge an output; `tiny` is the smallest normal number of the type, `scores` marks class scores."""
    # A scan output of no iterations has no elements: ONNX does not define its shape.
    nothing = actual.size == original.size == reference.size == 0 and actual.shape == original.shape
    if actual.shape != reference.shape and not nothing:
        return Judged(
            math.inf, 0.0, 0.0, 0.0, 0.0, None, f"its shape is {list(actual.shape)}, not {list(reference.shape)}"
        )
    if reference.dtype.kind not in "fV":
        own, error = (float(np.mean(x != reference)) if reference.size else 0.0 for x in (original, actual))
        return Judged(error, max(DIFFERING, OWN_FACTOR * own), own, 1.0, 0.0, None)
    if nothing:
        return Judged(0.0, tolerance, 0.0, 1.0, 0.0, None)
    error, cosine = relative_rms(actual, reference, tiny)
    own, _ = relative_rms(original, reference, tiny)
    allowed = max(tolerance, OWN_FACTOR * own) if math.isfinite(own) else tolerance
    broken = ""
    if not math.isfinite(error):
        mismatched = np.isfinite(reference.astype(np.float64)) != np.isfinite(actual.astype(np.float64))
        many, of = int(mismatched.sum()), mismatched.size
        are = agreeing(many, "is", "are", of=of)
        broken = f"{many} of {plural(of, 'element')} {are} finite in only one of reference and output"
    scale = float(np.sqrt(np.mean(np.square(reference.astype(np.float64))))) if reference.size else 0.0
    agreement = _agreement(actual, reference, allowed * scale) if scores and not broken else None
    return Judged(error, allowed, own, cosine, 1 - allowed * allowed if scale > tiny else -1.0, agreement, broken)


def relative_rms(actual: Array, reference: Array, tiny: float = 0.0) -> tuple[float, float]:
    """Return the RMS of the error over that of the reference, at least `tiny`, and the cosine of the two.

    The error is infinite where only one of them is finite.
    """
    a, b = actual.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return math.inf, 0.0
    if not finite.all():
        a, b = a[finite], b[finite]
    if not b.size:
        return 0.0, 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        off, size, other = (float(np.sqrt(np.mean(np.square(x)))) for x in (a - b, b, a))
        dot = float(np.mean(a * b))
    cosine = min(1.0, dot / (size * other)) if size and other else 1.0 if size == other else 0.0
    scale = max(size, tiny)
    return off / scale if scale else (math.inf if off else 0.0), cosine


def _agreement(actual: Array, reference: Array, slack: float) -> float:
    """Return the share of rows whose best class is the reference's, or equally good within the allowed error."""
    scores = reference.astype(np.float64).reshape(-1, reference.shape[-1])
    picked = np.argmax(actual.astype(np.float64).reshape(scores.shape), axis=1)
    return float(np.mean(scores[np.arange(len(scores)), picked] >= scores.max(axis=1) - 2 * slack))
