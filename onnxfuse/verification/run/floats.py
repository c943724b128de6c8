"""Properties of floating-point types, including those that NumPy lacks."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class FloatType:
    """Range and precision of a floating-point type."""

    largest: float
    eps: float
    """Machine epsilon: distance from 1 to the next number."""
    tiny: float
    """Smallest normal number."""
    denormal: float
    """Smallest positive number."""
    digits: int
    """Fraction bits of a normal number."""
    lowest_exponent: int
    """Exponent of two of `tiny`."""


@cache
def float_type(dtype: np.dtype[Any]) -> FloatType:
    """Return the properties of `dtype`: float16, bfloat16, float32, float64."""
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes leaves it untyped
    return FloatType(
        largest=float(info.max),
        eps=float(info.eps),
        tiny=float(info.tiny),
        denormal=float(info.smallest_subnormal),
        digits=int(info.nmant),
        lowest_exponent=int(info.minexp),
    )
