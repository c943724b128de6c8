"""Arithmetic of ranges: bounds of a result that follow from bounds of its operands."""

import math
from collections.abc import Iterable

Bound = int | float
"""An integer or an infinity."""

Range = tuple[Bound, Bound]
"""Least and greatest value."""

ANY: Range = (-math.inf, math.inf)
TRUTH: Range = (0, 1)
INT64: Range = (-(2**63), 2**63 - 1)


def multiplied(a: Range, b: Range) -> Range:
    """Return the range of a product."""
    if a[0] >= 0 and b[0] >= 0:
        return _times(a[0], b[0]), _times(a[1], b[1])
    ends = [_times(x, y) for x in a for y in b]
    return min(ends), max(ends)


def _times(a: Bound, b: Bound) -> Bound:
    try:
        return a * b if a and b else 0
    except OverflowError:  # an infinity times an integer that no double holds
        return math.inf if (a > 0) == (b > 0) else -math.inf


def added(a: Bound, b: Bound) -> Bound:
    """Return the sum of two bounds, which are not opposite infinities; no integer is too large for it."""
    return a if isinstance(a, float) else b if isinstance(b, float) else a + b


def product(ranges: Iterable[Range]) -> Range:
    """Return the range of a product of any number of factors."""
    result: Range = 1, 1
    for factor in ranges:
        result = multiplied(result, factor)
    return result


def scaled(a: Range, by: int) -> Range:
    """Return the range of a multiple; `by` is not zero."""
    low, high = _times(a[0], by), _times(a[1], by)
    return (low, high) if by > 0 else (high, low)


def unscaled(a: Range, by: int) -> Range:
    """Return the range of the integers of which the multiple is in a range; `by` is not zero."""
    low, high = a if by > 0 else (-a[1], -a[0])
    return (
        low if isinstance(low, float) else -(-low // abs(by)),
        high if isinstance(high, float) else high // abs(by),
    )


def of_sum(terms: Iterable[tuple[Range, int]], constant: int = 0) -> Range:
    """Return the range of a constant plus multiples, none by zero, of integers of these ranges."""
    low: Bound = constant
    high: Bound = constant
    for ends, factor in terms:
        least, most = scaled(ends, factor)
        low, high = added(low, least), added(high, most)
    return low, high


def intersected(a: Range, b: Range) -> Range:
    """Return the range of what is in both."""
    return max(a[0], b[0]), min(a[1], b[1])


def is_reduced(a: Range, by: Range) -> bool:
    """Return whether 0 <= a < by for all integers of these ranges: then a // by is 0, and a % by is a."""
    return a[0] >= 0 and a[1] < by[0]


def of_quotient(a: Range, b: Range, up: bool) -> Range:
    """Return the range of a quotient rounded down, or up; a divisor is no zero."""
    if b[0] < 0:
        return ANY
    low, high = max(b[0], 1), max(b[1], 1)
    if low == high:
        return _divided(a[0], low, up), _divided(a[1], low, up)
    ends = [_divided(x, y, up) for x in a for y in (low, high)]
    return min(ends), max(ends)


def _divided(a: Bound, b: Bound, up: bool) -> Bound:
    if isinstance(a, float):
        return a
    if isinstance(b, float):
        return 0 if a == 0 or (a < 0) == up else 1 if up else -1
    return -(-a // b) if up else a // b


def of_remainder(a: Range, b: Range) -> Range:
    """Return the range of a remainder with the sign of the divisor, which is no zero."""
    if b[0] < 0:
        return ANY
    return 0, b[1] - 1 if a[0] < 0 else min(b[1] - 1, a[1])


def of_gcd(a: Range, b: Range) -> Range:
    """Return the range of the greatest common divisor."""
    ends = [r[1] for r in (a, b) if r[0] > 0]
    return (1, min(ends)) if ends else (0, math.inf)


def of_bits(a: Range) -> Range:
    """Return the range of the number of bits."""
    most = max(abs(a[0]), abs(a[1]))
    return 0, math.inf if isinstance(most, float) else most.bit_length()


def of_shift(a: Range, by: Range) -> Range:
    """Return the range of an integer shifted to the left."""
    if a[0] < 0 or not 0 <= by[0] < 64:
        return ANY
    return int(a[0]) << int(by[0]), multiplied(a, (0, 1 << int(min(by[1], 64))))[1]


def of_selection(condition: Range, a: Range, b: Range) -> Range:
    """Return the range of the first integer if a condition holds, else of the second."""
    if condition[0] == condition[1]:
        return a if condition[0] else b
    return min(a[0], b[0]), max(a[1], b[1])
