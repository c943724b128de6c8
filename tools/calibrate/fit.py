"""Fits the numbers of a cost to measured times, where the estimate is any function of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import numpy as np

Row = TypeVar("Row")

ROUNDS = 40
"""Maximum steps of the fit; a dozen suffice."""
OUTLIER = 0.1
"""Relative deviation from which a time counts less, so that one disturbed measurement does not bend the fit (Huber)."""
LEAST = 1e-3
"""Least share of a number that a fit may leave of it: a speed is no divisor of 0."""
DAMPING = 1e-4
"""Pull towards the previous numbers, relative to them: what no time depends on stays as it was."""


@dataclass(frozen=True)
class Fit(Generic[Row]):
    """Fitted numbers, and how well they explain the times."""

    row: Row
    residual: float
    """Median relative deviation of the estimates."""
    count: int
    """Number of times."""


def fitted(start: Row, estimates: Sequence[Callable[[Row], float]], times: Sequence[float]) -> Fit[Row]:
    """Return the numbers by which `estimates` deviate least from `times`, relative to them; none is negative.

    Gauss-Newton steps with numerical derivatives, weighted by Huber's function; integers of a row, and what is
    infinite, stay as they are.
    Raises ValueError without a time.
    """
    if not times:
        raise ValueError("no times to fit to")
    row: Any = start
    names = [f.name for f in fields(row) if isinstance(value := getattr(row, f.name), float) and math.isfinite(value)]

    def with_numbers(numbers: np.ndarray) -> Any:
        return replace(row, **dict(zip(names, map(float, numbers), strict=True)))

    def deviations(numbers: np.ndarray) -> np.ndarray:
        candidate = with_numbers(numbers)
        return np.array([estimate(candidate) / time - 1 for estimate, time in zip(estimates, times, strict=True)])

    def loss(numbers: np.ndarray) -> float:
        apart = np.abs(deviations(numbers))
        return float(np.where(apart <= OUTLIER, apart**2, 2 * OUTLIER * apart - OUTLIER**2).sum())

    numbers = np.array([getattr(row, name) for name in names])
    floor, best = LEAST * numbers, loss(numbers)
    for _ in range(ROUNDS):
        scale = np.maximum(np.abs(numbers), 1e-2)
        apart = deviations(numbers)
        slopes = np.stack([(deviations(numbers + step) - apart) / 1e-4 for step in np.diag(scale * 1e-4)], axis=1)
        weight = np.sqrt(np.minimum(1.0, OUTLIER / np.maximum(np.abs(apart), 1e-12)))
        matrix = np.vstack([slopes * weight[:, None], DAMPING * np.eye(len(names))])
        step = np.linalg.lstsq(matrix, np.concatenate([-apart * weight, np.zeros(len(names))]), rcond=None)[0] * scale
        shares = [2.0**-n for n in range(8)]
        tried = [(loss(moved), moved) for share in shares for moved in [np.maximum(numbers + share * step, floor)]]
        least, moved = min(tried, key=lambda one: one[0])
        if least >= best * (1 - 1e-9):
            break
        best, numbers = least, moved
    return Fit(with_numbers(numbers), float(np.median(np.abs(deviations(numbers)))), len(times))
