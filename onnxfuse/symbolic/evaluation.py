"""How an expression is computed, one operation at a time: by this module, and by launch programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from onnxfuse.symbolic.expressions import Expression, constant, less
from onnxfuse.symbolic.integer import Atom, Int, IntLike, atom, largest, of_atom, of_terms, only_atom, smallest
from onnxfuse.symbolic.operations import CEILING, EXACT, FLOOR, MAX, MIN, OPERATIONS, SHARED, Value, int64
from onnxfuse.symbolic.terms import Terms, common_factors, divided

Step = tuple[str, tuple[Expression, ...]]
"""An operation and its operands."""


def step(value: Int | Atom) -> Step:
    """Return the operation that gives an expression, which is no constant and no name, and its operands, each plain."""
    if value.step is None:
        op, args = _of_atom(value) if isinstance(value, Atom) else _of_sum(value.terms)
        value.step = op, tuple(map(plain, args))
    result: Step = value.step
    return result


def plain(value: Expression) -> Expression:
    """Return an integer of one factor as this factor, so that every value is one object; others as they are."""
    while (factor := value if isinstance(value, Atom) else only_atom(value)) is not None:
        if factor.op != SHARED:
            return factor
        value = factor.args[0]
    return value


def _of_atom(value: Atom) -> Step:
    return _STEPS[value.op](*value.args) if value.op in _STEPS else (value.op, value.args)


def _ceiling(a: IntLike, b: IntLike) -> Step:
    # ceil(a / b) = -(-a // b)
    return "mul", (of_atom(atom(FLOOR, (-a, b))), -1)


def _minimum(first: IntLike, *others: IntLike) -> Step:
    other = smallest(*others)
    return "select", (less(other, first), other, first)


def _maximum(first: IntLike, *others: IntLike) -> Step:
    other = largest(*others)
    return "select", (less(first, other), other, first)


def _less(number: IntLike, value: Int) -> Step:
    if isinstance(number, Int):  # as `_less` made it
        return "lt", (number, value)
    a, b = _parts(value)
    if number == -1 and isinstance(b, Int):
        return "not", (atom("lt", (a, b)),)
    return "lt", (b + max(number, 0), a - min(number, 0))


def _not(condition: Atom) -> Step:
    if condition.op != "lt" or isinstance(condition.args[0], Int):
        return "not", (condition,)
    number, value = condition.args
    a, b = _parts(value)  # value <= number
    return "lt", (a - min(number + 1, 0), b + max(number + 1, 0))


def _equal(value: Int, number: int) -> Step:
    a, b = _parts(value)
    return "eq", (a - min(number, 0), b + max(number, 0))


def _parts(value: Int) -> tuple[IntLike, IntLike]:
    """Return (a, b) with value = a - b, both without a negative coefficient."""
    return (
        of_terms(tuple(t for t in value.terms if t[1] > 0)),
        of_terms(tuple((m, -c) for m, c in value.terms if c < 0)),
    )


_STEPS: Mapping[str, Callable[..., Step]] = {
    CEILING: _ceiling, EXACT: lambda a, b: (FLOOR, (a, b)), MIN: _minimum, MAX: _maximum, "lt": _less, "not": _not,
    "eq": _equal,
}  # fmt: skip
"""Steps of operations that have no opcode, and of conditions, which need no difference to be computed."""


def _of_sum(terms: Terms) -> Step:
    if len(terms) == 1:
        ((monomial, factor),) = terms
        if factor != 1:
            return "mul", (of_terms(((monomial, 1),)), factor)
        if len(monomial) == 1:
            return _of_atom(monomial[0])
        return "mul", (of_terms(((monomial[:-1], 1),)), of_terms(((monomial[-1:], 1),)))
    common = common_factors(terms)
    content = math.gcd(*(c for _, c in terms)) * (1 if any(c > 0 for _, c in terms) else -1)
    if common or content != 1:
        rest = of_terms(divided(terms, common, content))
        return "mul", (rest, of_terms(((common, content),)))
    last = next((t for t in reversed(terms) if t[1] < 0), terms[-1])
    rest = of_terms(tuple(t for t in terms if t is not last))
    return "add" if last[1] > 0 else "sub", (rest, of_terms(((last[0], abs(last[1])),)))


def evaluated(value: Expression, values: dict[Expression, Value]) -> Value:
    """Return the value of an expression. `values` has the values of its names, and gets those of all its parts.

    Raises `UnansweredError` unless each of them is exact in 64 bits.
    """
    value = plain(value)
    waiting = [value]
    while waiting:
        top = waiting[-1]
        if top in values:
            waiting.pop()
        elif (number := constant(top)) is not None:
            values[top] = int64(number) if isinstance(number, int) else number
        else:
            assert not isinstance(top, int)
            op, args = step(top)
            if missing := [a for a in args if a not in values]:
                waiting.extend(missing)
            else:
                values[top] = OPERATIONS[op].evaluate(*(values[a] for a in args))
    return values[value]
