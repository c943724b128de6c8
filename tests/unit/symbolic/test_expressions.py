"""What a planner computes: equal conditions are one object, facts hold, and a step at a time gives Python's values."""

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest

from onnxfuse.symbolic.branching import larger, least, most, smaller
from onnxfuse.symbolic.evaluation import evaluated
from onnxfuse.symbolic.expressions import MOST_TERMS, computed, negated
from onnxfuse.symbolic.facts import Facts
from onnxfuse.symbolic.integer import Atom, Int
from onnxfuse.symbolic.operations import UnansweredError
from onnxfuse.symbolic.recording import DecisionNode, Recording, extents_of, recorded
from onnxfuse.symbolic.traced_numbers import selected

OPERATORS: list[Callable[[Any, Any], Any]] = [
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, smaller, larger,
    lambda x, y: selected(x < y, x + 1, y), lambda x, y: selected(x == y, 3, y - x), lambda x, y: (x <= y) + y,
    lambda x, y: -(-x // larger(y, 1)), lambda x, y: (x + y).bit_length(),
]  # fmt: skip


def value(chance: random.Random, names: list[Any], depth: int) -> Any:
    """Return a number that is computed at random from these."""
    if depth == 0:
        return chance.choice([*names, chance.randint(-3, 9)])
    return chance.choice(OPERATORS)(value(chance, names, depth - 1), value(chance, names, depth - 1))


def recording(*dims: int) -> tuple[Recording, list[Any]]:
    """Return a run for these extents, and them as the planner has them."""
    made = Recording({}, DecisionNode(), dims)
    return made, [made.dim(n) for n in range(len(dims))]


def test_a_recorded_number_has_the_value_that_python_gives() -> None:
    """Whatever is computed, however large it becomes, for other extents than those of the run, too."""
    checked = 0
    for seed in range(1500):
        dims = [random.Random(seed).randint(0, 9) for _ in range(3)]
        try:
            traced = value(random.Random(seed), recording(5, 6, 7)[1], 1 + seed % 5)
            plain = value(random.Random(seed), list(dims), 1 + seed % 5)
            if hasattr(traced, "expression"):
                assert evaluated(traced.expression, extents_of(dims)) == plain, (seed, str(traced.expression))
                checked += 1
        except (ZeroDivisionError, UnansweredError):
            continue
    assert checked > 700


def test_what_follows_from_a_path_holds() -> None:
    """A range has the value in it, and an implied condition the truth, after any conditions that were assumed."""
    implied = 0
    for seed in range(1000):
        chance = random.Random(seed)
        names = recording(*(chance.randint(0, 9) for _ in range(3)))[1]
        facts = Facts()
        for _ in range(8):
            try:
                x, y = (value(chance, names, chance.randint(0, 2)) for _ in range(2))
                condition = chance.choice([operator.lt, operator.eq, operator.ge])(x, y)
                if not isinstance(getattr(condition, "expression", None), Atom):
                    continue
                holds = bool(condition.value)
                known = facts.implied(condition.expression)
                assert known in (None, holds), (seed, str(condition.expression))
                implied += known is not None
                facts.assume(condition.expression, holds)
                for number in (x, y):
                    if isinstance(getattr(number, "expression", None), Int):
                        low, high = facts.range(number.expression)
                        assert low <= number.value <= high, (seed, str(number.expression))
            except (ZeroDivisionError, UnansweredError):
                continue
    assert implied > 100


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


def test_a_number_of_many_terms_becomes_one_factor() -> None:
    """Products of sums do not multiply out without end, and what is too large for a normal form is no error."""
    n, m = recording(3, 4)[1]
    total, plain = n + m, 7
    for step in range(1, 30):
        total, plain = total * (n + step) % 1000 + m, plain * (3 + step) % 1000 + 4
    assert total.value == plain
    assert len(((n + m) * (n + 1) * (m + 1) * (n + 5)).expression.terms) <= MOST_TERMS


def test_beyond_64_bits_nobody_answers() -> None:
    n = recording(2**40)[1][0]
    assert (n * n < 2**64) is True
    with pytest.raises(UnansweredError):
        evaluated((n * n).expression, extents_of((2**40,)))
    assert computed("lt", Int.name("d0"), 2**63) is True


def test_a_choice_without_a_decision_is_not_taken_for_the_next_one() -> None:
    """Also when the path is taken again: the first choice has constant keys, the second depends on the extent."""
    root, known = DecisionNode(), dict[tuple[Any, ...], Any]()

    def planned(extent: int) -> tuple[int | None, int | None]:
        run = Recording(known, root, (extent,))
        n = run.dim(0)
        with recorded(run):
            return least((8, 16), lambda tile: tile), most((8, 16), lambda tile: -(-n // tile) * (tile - 12))

    assert [planned(extent) for extent in (50, 60, 5)] == [(8, 16)] * 3
