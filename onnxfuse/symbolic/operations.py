"""Operations on integers, conditions and doubles: exact evaluation in 64 bits, and opcodes of launch programs.

Integers are exact and reals are IEEE doubles, so that any evaluation gives the same bits or none: a result that does
not fit 64 bits, or a double, raises `UnansweredError`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onnxfuse.symbolic import ranges
from onnxfuse.symbolic.ranges import ANY, INT64, TRUTH, Range

Value = int | float

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


# ---- the table


OPERATIONS: Mapping[str, Operation] = {
    "add": Operation("ii", "i", lambda a, b: int64(a + b)),
    "sub": Operation("ii", "i", lambda a, b: int64(a - b)),
    "mul": Operation("ii", "i", lambda a, b: int64(a * b)),
    FLOOR: Operation("ii", "i", _rounded_quotient(lambda a, b: a // b), lambda a, b: ranges.of_quotient(a, b, False)),
    MOD: Operation("ii", "i", _rounded_quotient(lambda a, b: a % b), ranges.of_remainder),
    "gcd": Operation("ii", "i", math.gcd, ranges.of_gcd),
    "bit_length": Operation("i", "i", lambda a: abs(a).bit_length(), ranges.of_bits),
    "shl": Operation("ii", "i", _shifted, ranges.of_shift),
    "multiplier": Operation("ii", "i", multiplier, lambda a, b: (0, 2**32 - 1) if b == (32, 32) else INT64),
    "lt": Operation("ii", "i", lambda a, b: int(a < b), TRUTH),
    "eq": Operation("ii", "i", lambda a, b: int(a == b), TRUTH),
    "not": Operation("i", "i", lambda a: int(not a), TRUTH),
    "and": Operation("ii", "i", lambda a, b: int(bool(a) and bool(b)), TRUTH),
    "or": Operation("ii", "i", lambda a, b: int(bool(a) or bool(b)), TRUTH),
    "select": Operation("iii", "i", lambda c, a, b: a if c else b, ranges.of_selection),
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
    CEILING: Operation("ii", "i", composed, lambda a, b: ranges.of_quotient(a, b, True)),
    EXACT: Operation("ii", "i", composed, lambda a, b: ranges.of_quotient(a, b, False)),
    MIN: Operation("ii", "i", composed, lambda *args: (min(r[0] for r in args), min(r[1] for r in args))),
    MAX: Operation("ii", "i", composed, lambda *args: (max(r[0] for r in args), max(r[1] for r in args))),
    SHARED: Operation("i", "i", composed, lambda a: a),
}
"""Operations by name. The order of those that can be evaluated defines the tape's opcodes, and is part of its version.
"""
