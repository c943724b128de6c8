"""Expressions of planners: integers in normal form, conditions, and doubles in the order of their computation.

A condition compares a sum of products to a constant, so that it is one object however it was written, and its negation
is of the same kind. A constant condition is a Python `bool`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnxfuse.symbolic.integer import Atom, Int, IntLike, affine, atom, largest, of_atom, only_atom, smallest
from onnxfuse.symbolic.operations import FLOOR, MAX, MIN, MOD, OPERATIONS, REAL, SHARED, UnansweredError, Value
from onnxfuse.symbolic.ranges import INT64

Expression = int | Int | Atom
"""An integer; or an atom, which is a condition or a double."""

CONDITIONS = {"lt", "eq", "not", "and", "or", "real_lt", "real_eq"}
"""Operations that give a truth value."""

MOST_TERMS, MOST_SIZE = 8, 32
"""Terms and names of an operand that becomes part of a normal form; a larger one is one factor, whatever is in it."""


def real(value: float) -> Atom:
    """Return a double constant. 0.0 and -0.0 compare equal, but are different doubles."""
    return atom(REAL, (value.hex(),))


def constant(value: Expression) -> Value | None:
    """Return the value of a constant, None for what depends on a name."""
    if isinstance(value, Atom):
        return float.fromhex(value.args[0]) if value.op == REAL else None
    return value if isinstance(value, int) else None


def is_real(value: Expression) -> bool:
    """Return whether an expression is a double."""
    return isinstance(value, Atom) and (value.op == REAL or OPERATIONS[value.op].gives == "r")


def computed(op: str, *args: Expression) -> Expression:
    """Return the result of an operation.

    Raises ZeroDivisionError, and `UnansweredError` if it is a constant that does not fit 64 bits.
    """
    if op in _CONSTRUCTORS:
        return _CONSTRUCTORS[op](*args)
    values = [v for a in args if (v := constant(a)) is not None]
    if len(values) == len(args):
        value = OPERATIONS[op].evaluate(*values)
        return real(value) if isinstance(value, float) else value
    result = atom(op, args)
    return result if op in CONDITIONS or OPERATIONS[op].gives == "r" else of_atom(result)


# ---- integers


def _integer(value: Expression) -> IntLike:
    """Return an operand, a truth value as 0 or 1, in a size that a normal form can take up."""
    if isinstance(value, Atom):
        return of_atom(value)
    is_large = isinstance(value, Int) and (len(value.terms) > MOST_TERMS or value.size > MOST_SIZE)
    return _shared(value) if is_large else value


def _shared(value: IntLike) -> IntLike:
    if isinstance(value, int) or only_atom(value) is not None:
        return value
    return of_atom(atom(SHARED, (value,)))


def _normal(by: Callable[[IntLike, IntLike], Expression]) -> Callable[[Expression, Expression], Expression]:
    def apply(a: Expression, b: Expression) -> Expression:
        left, right = _integer(a), _integer(b)
        try:
            return by(left, right)
        except OverflowError:
            try:
                return by(_shared(left), _shared(right))
            except OverflowError as beyond:
                raise UnansweredError from beyond

    return apply


def _product(a: IntLike, b: IntLike) -> IntLike:
    if isinstance(a, Int) and isinstance(b, Int) and len(a.terms) * len(b.terms) > MOST_TERMS:
        a, b = (x if len(x.terms) == 1 else _shared(x) for x in (a, b))
    return a * b


# ---- conditions


def less(a: IntLike, b: IntLike) -> bool | Atom:
    """Return whether a < b."""
    difference = b - a
    if isinstance(difference, int):
        return difference > 0
    low, high = difference.range
    if low > 0 or high <= 0:
        return low > 0
    y, factor, offset = affine(difference)
    number = -offset // factor if factor > 0 else -(offset // factor) - 1  # y > number, or y <= number
    if not INT64[0] <= number < INT64[1]:  # an evaluation has no such y
        return (factor > 0) == (number < 0)
    condition = atom("lt", (number, y))
    return condition if factor > 0 else negated(condition)


def equal(a: IntLike, b: IntLike) -> bool | Atom:
    """Return whether a == b."""
    difference = b - a
    if isinstance(difference, int):
        return difference == 0
    low, high = difference.range
    y, factor, offset = affine(difference)
    if low > 0 or high < 0 or offset % factor or not INT64[0] <= -offset // factor <= INT64[1]:
        return False
    return atom("eq", (y, -offset // factor))


def negated(condition: Atom) -> Atom:
    """Return the negation of a condition."""
    inner: Atom = condition.args[0]
    return inner if condition.op == "not" else atom("not", (condition,))


def _select(condition: Atom, a: Expression, b: Expression) -> Expression:
    if a is b or (isinstance(a, int) and a == b):
        return a
    result = atom("select", (condition, a, b))
    return result if isinstance(a, Atom) and isinstance(b, Atom) else of_atom(result)


_CONSTRUCTORS: Mapping[str, Callable[..., Expression]] = {
    "add": _normal(lambda a, b: a + b), "sub": _normal(lambda a, b: a - b), "mul": _normal(_product),
    FLOOR: _normal(lambda a, b: a // b), MOD: _normal(lambda a, b: a % b), MIN: _normal(smallest),
    MAX: _normal(largest), "lt": _normal(less), "eq": _normal(equal), "not": negated, "select": _select,
    "and": lambda a, b: a if a is b else atom("and", (a, b)), "or": lambda a, b: a if a is b else atom("or", (a, b)),
}  # fmt: skip
