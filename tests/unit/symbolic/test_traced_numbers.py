"""Traced numbers: an expression as long as only planners compute with them, a value once Python needs one."""

import itertools
import math
from typing import Any

import pytest

from onnxfuse.symbolic.recording import DecisionNode, Recording
from onnxfuse.symbolic.traced_numbers import (
    Condition,
    Real,
    TracedInt,
    both,
    divisor_multiplier,
    either,
    extreme,
    gcd,
    is_bool,
    is_recorded,
    less,
    negated,
    selected,
)
from tests.unit.symbolic.test_recording import recording


class Run:
    """A recording of two extents, and how many decisions it took."""

    def __init__(self, *dims: int) -> None:
        self.root = DecisionNode()
        self.made = Recording({}, self.root, dims)
        self.dims: list[Any] = [self.made.dim(n) for n in range(len(dims))]

    @property
    def decisions(self) -> int:
        """Number of nodes with a condition on the way from the root."""
        node, count = self.root, 0
        while node.condition is not None:
            (node,) = node.children.values()
            count += 1
        return count


@pytest.mark.parametrize(
    "use",
    [
        str,
        repr,
        hash,
        int,
        float,
        lambda n: f"{n:04}",
        lambda n: [0, 1, 2, 3, 4, 5, 6, 7][n],
        lambda n: n**2,
        lambda n: n & 3,
        lambda n: 3 & n,
    ],
)
def test_what_needs_the_number_itself_specializes_the_program_to_it(use: Any) -> None:
    """It has the value of this run, and from then on the extent is that constant."""
    run = Run(6)
    n = run.dims[0]
    assert use(n) == use(6)
    assert run.decisions == 1
    assert n > 5
    assert run.decisions == 1, "a known number needs no other decision"


@pytest.mark.parametrize(
    "compute",
    [
        lambda n, m: n + m,
        lambda n, m: 2 - n,
        lambda n, m: n * m - 1,
        lambda n, m: -n,
        lambda n, m: +n,
        lambda n, m: n // 4,
        lambda n, m: 100 // n,
        lambda n, m: n % 4,
        lambda n, m: 100 % n,
        lambda n, m: n / 4,
        lambda n, m: 3 / n,
        lambda n, m: 1 << n,
        lambda n, m: n << 2,
        lambda n, m: divmod(n, m),
        lambda n, m: divmod(50, n),
        lambda n, m: n * 1.5 - m,
        lambda n, m: 2.5 + n,
        lambda n, m: math.ceil(n / 4),
        lambda n, m: math.floor(n * 0.3),
        lambda n, m: round(n / 3, 2),
        lambda n, m: n.bit_length(),
        lambda n, m: (n < m) + (n >= m) * 2,
    ],
)
def test_arithmetic_is_recorded_and_decides_nothing(compute: Any) -> None:
    """Its value is the one that Python gives, to the bit."""
    run = Run(13, 5)
    made = compute(*run.dims)
    values = made if isinstance(made, tuple) else (made,)
    assert all(is_recorded(v) for v in values)
    expected = compute(13, 5)
    assert tuple(v.value for v in values) == (expected if isinstance(expected, tuple) else (expected,))
    assert run.decisions == 0


def test_kinds_follow_from_the_operation() -> None:
    """A quotient is a double, a comparison a condition, and neither an integer."""
    n = recording(8)[1][0]
    assert isinstance(n, TracedInt)
    assert isinstance(n / 3, Real)
    assert isinstance(n * 0.5, Real)
    assert isinstance(n < 3, Condition)
    assert isinstance(n / 3 < 3, Condition)
    assert not isinstance(n, int)
    assert [is_bool(v) for v in (n < 3, True, n, 1)] == [True, True, False, False]


def test_a_comparison_is_a_decision_only_where_it_is_asked() -> None:
    """And one that follows from an earlier one is none."""
    run = Run(7)
    n = run.dims[0]
    condition = n > 3
    assert run.decisions == 0
    assert condition
    assert run.decisions == 1
    assert n >= 4
    assert n != 2
    assert bool(n)
    assert run.decisions == 1
    assert abs(n - 9) == 2
    assert run.decisions > 1


@pytest.mark.parametrize(("n", "m"), [*itertools.product((0, 1, 4, 9), (0, 4, 9))])
def test_choices_are_expressions(n: int, m: int) -> None:
    """Minima, maxima, selections, tuples of them, conjunctions and the order of tuples have Python's value."""
    run = Run(n, m)
    a, b = run.dims
    cases = [
        (extreme(a, b, False), min(n, m)),
        (extreme(a, b, True), max(n, m)),
        (extreme(a * 0.5, 2, True), max(n * 0.5, 2)),
        (selected(a < b, a, 7), n if n < m else 7),
        (selected(a < b, 0.5, a), 0.5 if n < m else float(n)),
        (selected(a < b, True, a == b), n <= m),
        (selected(a < b, a == 0, False), n < m and n == 0),
        (selected(a < b, False, a == 0), not n < m and n == 0),
        (selected(a < b, b == 9, True), not n < m or m == 9),
        (both(a < b, b == 9), n < m and m == 9),
        (either(a < b, b == 9), n < m or m == 9),
        (both(True, a < b), n < m),
        (either(False, a < b), n < m),
        (both(a < b, True), n < m),
        (either(a < b, False), n < m),
        (negated(a < b), n >= m),
        (less((a, b), (b, a)), (n, m) < (m, n)),
        (less((a, 3), (b, 4)), (n, 3) < (m, 4)),
        (gcd(a + 6, b + 6), math.gcd(n + 6, m + 6)),
        (gcd(0, a), n),
    ]
    for index, (made, expected) in enumerate(cases):
        assert (made.value if is_recorded(made) else made) == expected, index
    assert [one.value for one in selected(a < b, (a, b), (b, a + 1))] == list((n, m) if n < m else (m, n + 1))
    assert run.decisions == 0
    assert (both(a < b, False), both(False, a < b), either(True, a < b), either(a < b, True)) == (
        False,
        False,
        True,
        True,
    )


def test_what_decides_branches() -> None:
    """Where results lead on differently, a combined condition is a branch."""
    run = Run(4, 9)
    run.made.deciding = True
    a, b = run.dims
    assert selected(a < b, "first", "second") == "first"
    assert run.decisions == 1


def test_without_a_recording_numbers_are_plain() -> None:
    """The same functions serve planners that are not recorded."""
    assert (extreme(3, 5, True), extreme(3, 5, False), gcd(12, 18), selected(True, 1, 2)) == (5, 3, 6, 1)
    assert (both(True, False), either(False, True), negated(True)) == (False, True, False)
    assert less((1, 2), (1, 3)) is True
    assert less((1, 3), (1, 3)) is False


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 640, 2**31 - 1])
def test_a_division_by_its_multiplier_is_that_division(divisor: int) -> None:
    """The word by which a kernel multiplies, instead of dividing: recorded and plain."""
    traced = divisor_multiplier(recording(divisor)[1][0], 32).value
    assert traced == divisor_multiplier(divisor, 32)


def test_other_types_are_left_to_them() -> None:
    """A traced number and what is no number are not equal and not comparable, as Python has it."""
    n = recording(3)[1][0]
    assert (n == "3") is False
    assert (n != "3") is True
    with pytest.raises(TypeError):
        n < "3"  # noqa: B015 - it raises
