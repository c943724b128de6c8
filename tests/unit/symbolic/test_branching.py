"""Conditions of traced numbers."""

from collections.abc import Callable
from typing import Any

import pytest

from onnxfuse.symbolic.branching import smaller
from onnxfuse.symbolic.expressions import negated
from tests.unit.symbolic.test_recording import recording


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda n, m: n > 3, lambda n, m: n >= 4), (lambda n, m: n < m, lambda n, m: n + 1 <= m),
        (lambda n, m: 2 * n < 7, lambda n, m: n <= 3), (lambda n, m: (n + m) * 8 > 8 * n, lambda n, m: m > 0),
        (lambda n, m: n + m == 5, lambda n, m: 5 - m == n), (lambda n, m: 3 * n == 6, lambda n, m: n == 2),
        (lambda n, m: not_(n < m), lambda n, m: n >= m),
    ],
)  # fmt: skip
def test_equal_conditions_are_one_object(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    n, m = recording(7, 8)[1]
    assert one(n, m).expression is other(n, m).expression


def not_(condition: Any) -> Any:
    """Return the negation, as a recorded value."""
    return type(condition)(condition.recorder, negated(condition.expression))


def test_what_always_holds_is_no_question() -> None:
    made, (n, m) = recording(7, 8)
    for condition in (n >= 0, n < n + 1, (n + 7) // 8 * 8 >= n, n % 8 < 8, smaller(n, m) <= n, n * m >= 0):
        assert condition is True
    assert (2 * n == 5) is False
    assert made.at.condition is None
