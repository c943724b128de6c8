"""What follows from conditions that hold: ranges of names, sums and products, equal names, other conditions.

That nothing false follows, whatever was computed, is a law of tests/unit/symbolic/test_recording.py.
"""

import math
from typing import Any

import pytest

from onnxfuse.symbolic.expressions import equal, less, negated
from onnxfuse.symbolic.facts import Facts
from onnxfuse.symbolic.integer import Atom, Int, IntLike

A, B, C = Int.name("a", 0), Int.name("b", 1), Int.name("c", 1)


def atom(condition: Any) -> Atom:
    assert isinstance(condition, Atom)
    return condition


def facts(*conditions: bool | Atom) -> Facts:
    """Return what is known where these hold."""
    found = Facts()
    for condition in conditions:
        found.assume(atom(condition), True)
    return found


@pytest.mark.parametrize(
    ("conditions", "value", "range_"),
    [
        ([less(A, 8)], A, (0, 7)),
        ([less(3, A)], A, (4, math.inf)),
        ([less(3, A), less(A, 8)], 2 * A + 1, (9, 15)),
        ([equal(A, 5)], A * B, (5, math.inf)),
        ([less(A + B, 8)], A + B, (1, 7)),
        ([less(A + B, 8)], A, (0, 6)),
        ([less(A + B, 8)], 3 * A + 3 * B, (3, 21)),
        ([less(A * B, 8)], A * B, (0, 7)),
        ([less(A, 8)], A // 2, (0, 3)),
        ([less(A, 8)], A % 5, (0, 4)),
    ],
)
def test_a_range_is_that_of_all_that_holds(
    conditions: list[bool | Atom], value: IntLike, range_: tuple[float, float]
) -> None:
    """Of what was assumed, of its parts, and of what is computed from them."""
    assert facts(*conditions).range(value) == range_


@pytest.mark.parametrize(
    ("conditions", "condition", "follows"),
    [
        ([less(A, 8)], less(A, 9), True),
        ([less(A, 8)], less(A, 8), True),
        ([less(A, 8)], less(A, 7), None),
        ([less(A, 8)], less(8, A), False),
        ([less(A, 8)], equal(A, 8), False),
        ([less(A, 8)], equal(A, 3), None),
        ([equal(A, 3)], equal(A + 1, 4), True),
        ([less(A, B), less(B, C)], less(A, C), None),
        ([equal(A, B)], less(C, A), None),
    ],
)
def test_a_condition_follows_or_not(
    conditions: list[bool | Atom], condition: bool | Atom, follows: bool | None
) -> None:
    found = facts(*conditions)
    assert found.implied(atom(condition)) is follows
    assert found.implied(negated(atom(condition))) is (None if follows is None else not follows)


def test_what_does_not_hold_says_as_much() -> None:
    found = Facts()
    found.assume(atom(less(A, 8)), False)
    assert found.range(A) == (8, math.inf)
    found.assume(atom(equal(A, 8)), False)
    assert found.range(A) == (9, math.inf)


def test_equal_names_are_one() -> None:
    """The later one is written as the other, and what was known of both holds for it."""
    found = facts(less(C, 9), less(3, B), equal(B - C, 0))
    assert found.canonical(C) is B
    assert found.canonical(2 * C - B) is B
    assert found.range(C) == (4, 8)
    assert facts(less(A + C, 9), equal(B - C, 0)).range(A + B) == (1, 8)


def test_a_name_that_is_known_is_a_number() -> None:
    found = facts(equal(A, 5))
    assert found.canonical(A * B + A) is 5 * B + 5
    assert found.canonical(7) == 7


def test_divisions_and_choices_become_simpler() -> None:
    """Where what is known decides them."""
    assert Facts().canonical(A // 8) is A // 8
    found = facts(less(A, 8))
    assert (found.canonical(A // 8), found.canonical(A % 8)) == (0, A)
    assert found.canonical(A // 7) is A // 7
    assert facts(less(A, B)).canonical(A // B) == 0


def test_a_copy_leaves_the_first_as_it_is() -> None:
    first = facts(less(A, 8))
    second = first.copy()
    second.assume(atom(less(A, 5)), True)
    assert (first.range(A), second.range(A)) == ((0, 7), (0, 4))
