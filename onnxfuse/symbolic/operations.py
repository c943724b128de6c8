"""Operations on integers, conditions and doubles: exact evaluation in 64 bits, ranges, and opcodes of launch programs.

Integers are exact and reals are IEEE doubles, so that any evaluation gives the same bits or none: a result that does
not fit 64 bits, or a double, raises `UnansweredError`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Value = int | float

Bound = int | float
"""An integer or an infinity."""

Range = tuple[Bound, Bound]
"""Least and greatest value."""

ANY: Range = (-math.inf, math.inf)
TRUTH: Range = (0, 1)
INT64: Range = (-(2**63), 2**63 - 1)

NAME, REAL, SHARED = "name", "real", "shared"
"""Atoms that are no operation: a name, a double constant (its text in hex), an expression as one value."""

FLOOR, CEILING, EXACT, MOD, MIN, MAX = "floordiv", "ceiling", "exact", "mod", "min", "max"
"""`floordiv` and `ceiling` divide and round down or up; `exact` is a division without remainder."""

MOST_EXACT = 2**53
"""Magnitude up to which a double represents every integer."""


class UnansweredError(Exception):
    """An evaluation that is not exact in 64 bits: the planner itself has to run."""


@dataclass(frozen=True)
class Operation:
    """An operation of a launch program, or a factor of an integer's normal form."""

    takes: str
    """Kinds of the operands, a letter each: `i`, an integer or a truth value, or `r`, a double."""
    gives: str
    evaluate: Callable[..., Value]
    result: Range | Callable[..., Range] = ANY
    """Range of an integer result, or a function of the operands' ranges that gives it."""

    def range(self, of: Callable[[Any], Range], operands: Iterable[Any]) -> Range:
        """Return the range of the result; `of` gives that of an operand."""
        return self.result(*map(of, operands)) if callable(self.result) else self.result


# ---- evaluation


def int64(value: int) -> int:
    """Return an integer that fits 64 bits; raises `UnansweredError`."""
    if not INT64[0] <= value <= INT64[1]:
        raise UnansweredError
    return value


def _rounded_quotient(by: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def divide(a: int, b: int) -> int:
        if b == 0:
            raise UnansweredError
        return int64(by(a, b))

    return divide


def _real(a: int) -> float:
    if abs(a) > MOST_EXACT:
        raise UnansweredError
    return float(a)


def _quotient(a: float, b: float) -> float:
    if b == 0:
        raise UnansweredError
    return a / b


def _shifted(a: int, by: int) -> int:
    if not 0 <= by < 63:
        raise UnansweredError
    return int64(a << by)


def multiplier(extent: int, bits: int) -> int:
    """Return the multiplier of a division by `extent` (symbolic/strides.py), as a signed 64-bit number."""
    if not 0 <= extent < 2**62 or bits not in (32, 64):
        raise UnansweredError
    shift = max(extent - 1, 0).bit_length()
    result = (((1 << bits) * ((1 << shift) - extent)) // max(extent, 1) + 1) % (1 << bits)
    return result - (1 << 64) if result >= 1 << 63 else result


def _rounded(a: float, digits: int) -> float:
    if digits != 2 or not abs(a) < 2**40:
        raise UnansweredError
    return round(a, digits)


def _floor(a: float) -> int:
    if not abs(a) <= MOST_EXACT:
        raise UnansweredError
    return math.floor(a)


def composed(*_: Value) -> Value:
    """Evaluate what has no opcode: a program computes it by other operations."""
    raise AssertionError("an operation that is computed by others")


# ---- ranges


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


def _range_of_quotient(a: Range, b: Range, up: bool) -> Range:
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


def _range_of_remainder(a: Range, b: Range) -> Range:
    if b[0] < 0:
        return ANY
    return 0, b[1] - 1 if a[0] < 0 else min(b[1] - 1, a[1])


def _range_of_gcd(a: Range, b: Range) -> Range:
    ends = [r[1] for r in (a, b) if r[0] > 0]
    return (1, min(ends)) if ends else (0, math.inf)


def _range_of_bits(a: Range) -> Range:
    most = max(abs(a[0]), abs(a[1]))
    return 0, math.inf if isinstance(most, float) else most.bit_length()


def _range_of_shift(a: Range, by: Range) -> Range:
    if a[0] < 0 or not 0 <= by[0] < 64:
        return ANY
    return int(a[0]) << int(by[0]), multiplied(a, (0, 1 << int(min(by[1], 64))))[1]


def _range_of_selection(condition: Range, a: Range, b: Range) -> Range:
    if condition[0] == condition[1]:
        return a if condition[0] else b
    return min(a[0], b[0]), max(a[1], b[1])


# ---- the table


OPERATIONS: Mapping[str, Operation] = {
    "add": Operation("ii", "i", lambda a, b: int64(a + b)),
    "sub": Operation("ii", "i", lambda a, b: int64(a - b)),
    "mul": Operation("ii", "i", lambda a, b: int64(a * b)),
    FLOOR: Operation("ii", "i", _rounded_quotient(lambda a, b: a // b), lambda a, b: _range_of_quotient(a, b, False)),
    MOD: Operation("ii", "i", _rounded_quotient(lambda a, b: a % b), _range_of_remainder),
    "gcd": Operation("ii", "i", math.gcd, _range_of_gcd),
    "bit_length": Operation("i", "i", lambda a: abs(a).bit_length(), _range_of_bits),
    "shl": Operation("ii", "i", _shifted, _range_of_shift),
    "multiplier": Operation("ii", "i", multiplier, lambda a, b: (0, 2**32 - 1) if b == (32, 32) else INT64),
    "lt": Operation("ii", "i", lambda a, b: int(a < b), TRUTH),
    "eq": Operation("ii", "i", lambda a, b: int(a == b), TRUTH),
    "not": Operation("i", "i", lambda a: int(not a), TRUTH),
    "and": Operation("ii", "i", lambda a, b: int(bool(a) and bool(b)), TRUTH),
    "or": Operation("ii", "i", lambda a, b: int(bool(a) or bool(b)), TRUTH),
    "select": Operation("iii", "i", lambda c, a, b: a if c else b, _range_of_selection),
    "real_of": Operation("i", "r", _real),
    "real_add": Operation("rr", "r", lambda a, b: a + b),
    "real_sub": Operation("rr", "r", lambda a, b: a - b),
    "real_mul": Operation("rr", "r", lambda a, b: a * b),
    "real_div": Operation("rr", "r", _quotient),
    "real_lt": Operation("rr", "i", lambda a, b: int(a < b), TRUTH),
    "real_eq": Operation("rr", "i", lambda a, b: int(a == b), TRUTH),
    "real_select": Operation("irr", "r", lambda c, a, b: a if c else b),
    "round": Operation("ri", "r", _rounded),
    "floor": Operation("r", "i", _floor),
    CEILING: Operation("ii", "i", composed, lambda a, b: _range_of_quotient(a, b, True)),
    EXACT: Operation("ii", "i", composed, lambda a, b: _range_of_quotient(a, b, False)),
    MIN: Operation("ii", "i", composed, lambda *args: (min(r[0] for r in args), min(r[1] for r in args))),
    MAX: Operation("ii", "i", composed, lambda *args: (max(r[0] for r in args), max(r[1] for r in args))),
    SHARED: Operation("i", "i", composed, lambda a: a),
}
"""Operations by name. The order of those that can be evaluated defines the tape's opcodes, and is part of its version.
"""
