"""User tolerances that replace the error budget: for all outputs, for one, or for an element type.

An output with a tolerance is judged as `numpy.testing.assert_allclose` does: |fused - original| may be at most atol +
rtol * |original|; infinities and NaN must be the same. If only one of rtol and atol is given, the other is 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import plural
from onnxfuse.verification.tolerance.metrics import chunks

ALL = ""
"""The key of a tolerance for every output."""
TYPES = ("float16", "bfloat16", "float32", "float64")
"""Keys of a tolerance for an element type."""

Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Tolerances:
    """Tolerances by output name, by element type, and for `ALL`, in this order of precedence."""

    rtol: Numbers
    atol: Numbers

    def of(self, output: str, dtype: str) -> tuple[float, float] | None:
        """Return rtol and atol of an output; None if neither is given and the error budget applies."""
        values = [next((t[k] for k in (output, dtype, ALL) if k in t), None) for t in (self.rtol, self.atol)]
        if values == [None, None]:
            return None
        return values[0] or 0.0, values[1] or 0.0

    def check(self, outputs: list[str]) -> None:
        """Raise UsageError for a key that is neither an output nor an element type, and for a negative number."""
        for option, tolerances in (("rtol", self.rtol), ("atol", self.atol)):
            for key, value in tolerances.items():
                if key not in (ALL, *TYPES, *outputs):
                    raise UsageError(
                        f"{option} {key}={value:g}: no output or element type has that name",
                        f"Outputs: {', '.join(outputs)}. Types: {', '.join(TYPES)}.",
                    )
                if not 0 <= value < np.inf:
                    raise UsageError(f"{option} {value:g}: a tolerance is a finite number from 0", "For example 1e-3.")


@dataclass(frozen=True)
class Tolerated:
    """One output in one case, judged by a tolerance."""

    rtol: float
    atol: float
    beyond: int
    """Number of elements beyond the tolerance."""
    worst: float
    """Largest used share of an element's tolerance; infinite where the tolerance is zero."""
    where: tuple[int, ...]
    """That element; empty if nothing differs."""

    @property
    def fault(self) -> str:
        """What is wrong, in words; empty if every element is within the tolerance."""
        if not self.beyond:
            return ""
        return (
            f"{plural(self.beyond, 'element')} beyond rtol {self.rtol:g} atol {self.atol:g}, "
            f"the worst by {self.worst:.3g} times"
        )


def tolerated(fused: npt.NDArray[Any], original: npt.NDArray[Any], rtol: float, atol: float) -> Tolerated:
    """Judge an output by its tolerance; the arrays are of one shape and type, and hold numbers."""
    beyond, worst, index_of_worst = 0, 0.0, -1
    for start, f, o in chunks(fused, original):
        a, b = f.astype(np.float64), o.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            used = np.abs(a - b) / (atol + rtol * np.abs(b))
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        used = np.where(same, 0.0, np.where(np.isfinite(a) & np.isfinite(b), used, np.inf))
        beyond += int((used > 1).sum())
        index = int(np.argmax(used))
        if used[index] > worst:
            worst, index_of_worst = float(used[index]), start + index
    where = tuple(int(i) for i in np.unravel_index(index_of_worst, original.shape)) if index_of_worst >= 0 else ()
    return Tolerated(rtol, atol, beyond, worst, where)
