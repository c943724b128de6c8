"""Hash-consed expressions over the extents of an op's inputs, with the semantics of Python's operators.

Integers are exact and reals are IEEE doubles, so that any evaluation gives the same bits or none: a result that does
not fit 64 bits, or a double, raises `UnansweredError`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Value = int | float

DIM, INTEGER, REAL = "dim", "integer", "real"
"""Leaf nodes: an input's extent, by its index among all of them, and constants."""

MOST_EXACT = 2**53
"""Magnitude up to which a double represents every integer."""


class UnansweredError(Exception):
    """An evaluation that is not exact in 64 bits: the planner itself has to run."""


def _int64(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise UnansweredError
    return value


def _divided(by: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def divide(a: int, b: int) -> int:
        if b == 0:
            raise UnansweredError
        return _int64(by(a, b))

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
    return _int64(a << by)


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return abs(a)


def multiplier(extent: int, bits: int) -> int:
    """Return the multiplier of a division by `extent` (symbolic/strides.py), as a signed 64-bit number."""
    shift = max(extent - 1, 0).bit_length()
    found = (((1 << bits) * ((1 << shift) - extent)) // max(extent, 1) + 1) % (1 << bits)
    return found - (1 << 64) if found >= 1 << 63 else found


def _multiplier(extent: int, bits: int) -> int:
    if not 0 <= extent < 2**62 or bits not in (32, 64):
        raise UnansweredError
    return multiplier(extent, bits)


def _rounded(a: float, digits: int) -> float:
    if digits != 2 or not abs(a) < 2**40:
        raise UnansweredError
    return round(a, digits)


def _floor(a: float) -> int:
    if not abs(a) <= MOST_EXACT:
        raise UnansweredError
    return math.floor(a)


OPERATIONS: Mapping[str, Callable[..., Value]] = {
    "add": lambda a, b: _int64(a + b),
    "sub": lambda a, b: _int64(a - b),
    "mul": lambda a, b: _int64(a * b),
    "floordiv": _divided(lambda a, b: a // b),
    "mod": _divided(lambda a, b: a % b),
    "gcd": _gcd,
    "bit_length": lambda a: abs(a).bit_length(),
    "shl": _shifted,
    "multiplier": _multiplier,
    "lt": lambda a, b: int(a < b),
    "eq": lambda a, b: int(a == b),
    "not": lambda a: int(not a),
    "and": lambda a, b: int(bool(a) and bool(b)),
    "or": lambda a, b: int(bool(a) or bool(b)),
    "select": lambda c, a, b: a if c else b,
    "real_of": _real,
    "real_add": lambda a, b: a + b,
    "real_sub": lambda a, b: a - b,
    "real_mul": lambda a, b: a * b,
    "real_div": _quotient,
    "real_lt": lambda a, b: int(a < b),
    "real_eq": lambda a, b: int(a == b),
    "real_select": lambda c, a, b: a if c else b,
    "round": _rounded,
    "floor": _floor,
}
"""Operations by name; their order defines the tape's opcodes, and is part of its version."""


@dataclass
class ExpressionGraph:
    """The expressions of one family's programs; each is identified by its index."""

    nodes: list[tuple[str, tuple[Value, ...]]] = field(default_factory=list)
    """The operation with the indices of its operands; a constant with its value, an extent with its index."""
    known: dict[object, int] = field(default_factory=dict)
    factors: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Sorted factors of each product, so that a product is one expression however it was associated."""

    def node(self, op: str, *args: Value) -> int:
        """Return the index of an expression, a new one only if no equal one exists."""
        # 0.0 and -0.0 compare equal, but are different doubles.
        key: object = (op, args[0].hex()) if op == REAL and isinstance(args[0], float) else (op, args)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = len(self.nodes)
            self.nodes.append((op, args))
        return found

    def integer(self, value: int) -> int:
        """Return the index of an integer constant; raises `UnansweredError` beyond 64 bits."""
        _int64(value)
        return self.node(INTEGER, value)

    def constant(self, number: int) -> Value | None:
        """Return the value of a constant, None for a computed expression."""
        op, args = self.nodes[number]
        return args[0] if op in (INTEGER, REAL) else None

    def product(self, a: int, b: int) -> int:
        """Return the product of two integers in canonical form: its factors in order, the constant last."""
        found = sorted((*self.factors.get(a, (a,)), *self.factors.get(b, (b,))))
        constant, rest = 1, []
        for number in found:
            value = self.constant(number)
            if value is None:
                rest.append(number)
            else:
                constant *= int(value)
        if not rest or constant == 0:
            return self.integer(constant)
        parts = rest if constant == 1 else [*rest, self.integer(constant)]
        made = parts[0]
        for count, part in enumerate(parts[1:], 2):
            made = self.node("mul", made, part)
            self.factors[made] = tuple(parts[:count])
        return made

    def evaluated(self, number: int, dims: Sequence[int], known: dict[int, Value]) -> Value:
        """Return the value of an expression for these extents; raises `UnansweredError`. `known` memoizes all."""
        waiting = [number]
        while waiting:
            top = waiting[-1]
            if top in known:
                waiting.pop()
                continue
            op, args = self.nodes[top]
            if op == DIM:
                known[top] = dims[int(args[0])]
            elif op in (INTEGER, REAL):
                known[top] = args[0]
            elif missing := [int(a) for a in args if a not in known]:
                waiting.extend(missing)
            else:
                known[top] = OPERATIONS[op](*(known[int(a)] for a in args))
        return known[number]
