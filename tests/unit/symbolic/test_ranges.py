"""A range holds every result of operands in their ranges, and its ends are results wherever arithmetic is exact."""

import itertools
import math
from collections.abc import Callable, Iterator

import pytest

from onnxfuse.symbolic import ranges
from onnxfuse.symbolic.ranges import ANY, Range

ENDS = (-5, -1, 0, 1, 2, 7)
SMALL = [(low, high) for low in ENDS for high in ENDS if low <= high]
"""Ranges around zero, on one side of it, and of one integer."""
POSITIVE = [one for one in SMALL if one[0] > 0]


def inside(one: tuple[int, int]) -> range:
    return range(one[0], one[1] + 1)


def results(a: tuple[int, int], b: tuple[int, int], compute: Callable[[int, int], int]) -> list[int]:
    return [compute(x, y) for x in inside(a) for y in inside(b)]


def pairs(others: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    return itertools.product(SMALL, others)


EXACT: dict[str, tuple[Callable[[Range, Range], Range], Callable[[int, int], int], list[tuple[int, int]]]] = {
    "product": (ranges.multiplied, lambda x, y: x * y, SMALL),
    "sum": (lambda a, b: ranges.of_sum([(a, 2), (b, -3)], 4), lambda x, y: 4 + 2 * x - 3 * y, SMALL),
    "quotient down": (lambda a, b: ranges.of_quotient(a, b, False), lambda x, y: x // y, POSITIVE),
    "quotient up": (lambda a, b: ranges.of_quotient(a, b, True), lambda x, y: -(-x // y), POSITIVE),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_ends_are_the_least_and_the_greatest_result(name: str) -> None:
    bounds, compute, others = EXACT[name]
    for a, b in pairs(others):
        found = results(a, b, compute)
        assert bounds(a, b) == (min(found), max(found)), (a, b)


BOUNDED: dict[str, tuple[Callable[[Range, Range], Range], Callable[[int, int], int], list[tuple[int, int]]]] = {
    "remainder": (ranges.of_remainder, lambda x, y: x % y, POSITIVE),
    "greatest common divisor": (ranges.of_gcd, math.gcd, SMALL),
    "bits": (lambda a, _: ranges.of_bits(a), lambda x, _: abs(x).bit_length(), [(0, 0)]),
    "shift": (ranges.of_shift, lambda x, y: x << y, [one for one in SMALL if one[0] >= 0]),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_no_result_is_outside(name: str) -> None:
    bounds, compute, others = BOUNDED[name]
    for a, b in pairs(others):
        low, high = bounds(a, b)
        assert all(low <= found <= high for found in results(a, b, compute)), (a, b)


def test_what_a_multiple_may_be_of() -> None:
    """The integers whose multiples are in the range, and no others."""
    for one, by in itertools.product(SMALL, (-3, -1, 2, 5)):
        low, high = ranges.unscaled(one, by)
        assert [n for n in range(-20, 21) if low <= n <= high] == [n for n in range(-20, 21) if n * by in inside(one)]


def test_a_remainder_is_the_dividend_where_it_is_below_the_divisor() -> None:
    """For all of both ranges, and only then."""
    for a, b in pairs(POSITIVE):
        assert ranges.is_reduced(a, b) == all(0 <= x < y for x in inside(a) for y in inside(b))


def test_what_has_no_end_stays_without_one() -> None:
    """Also times an integer that no double holds, and times zero."""
    large = 10**400
    assert ranges.multiplied((1, math.inf), (large, large)) == (large, math.inf)
    assert ranges.multiplied((-math.inf, 1), (large, large)) == (-math.inf, large)
    assert ranges.multiplied(ANY, (0, 0)) == (0, 0)
    assert ranges.of_sum([((0, math.inf), 1), ((1, 1), large)]) == (large, math.inf)
    assert ranges.of_quotient((0, math.inf), (2, math.inf), False) == (0, math.inf)
    assert ranges.of_quotient((-4, 4), (1, math.inf), False) == (-4, 4)
    assert ranges.of_quotient((1, 4), (-1, 4), False) == ANY
    assert ranges.product([(2, 3), (4, math.inf), (5, 5)]) == (40, math.inf)


def test_a_choice_is_one_of_both_unless_its_condition_is_known() -> None:
    assert ranges.of_selection((0, 1), (1, 2), (7, 9)) == (1, 9)
    assert ranges.of_selection((1, 1), (1, 2), (7, 9)) == (1, 2)
    assert ranges.of_selection((0, 0), (1, 2), (7, 9)) == (7, 9)
    assert ranges.intersected((1, 8), (7, 9)) == (7, 8)
