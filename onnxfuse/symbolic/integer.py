"""Immutable integer expressions in normal form: equal sums of products are one object, however they were written.

A constant is a Python `int`; everything else is an `Int`. Operators have Python's semantics, also for negative numbers.
Division cancels common factors: a divisor is taken to be no zero.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn

from onnxfuse.symbolic import text as texts
from onnxfuse.symbolic.operations import CEILING, EXACT, FLOOR, MAX, MIN, MOD, NAME, OPERATIONS
from onnxfuse.symbolic.ranges import Bound, Range, is_reduced, multiplied, of_sum, product
from onnxfuse.symbolic.terms import Monomial, Terms, common_factors, divided, in_order, summed, whole_multiples, without

MOST_TERMS = 64
"""Maximum terms of a sum; a computation beyond raises OverflowError. A sum times itself has their square."""

MOST_ATOMS = 256
"""Maximum names in an expression, each counted as often as it occurs."""

MOST_BITS = 4096
"""Maximum bits of a coefficient."""

_atoms: weakref.WeakValueDictionary[tuple[Any, ...], Atom] = weakref.WeakValueDictionary()
_sums: weakref.WeakValueDictionary[Terms, Int] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _unlock_in_child() -> None:
    """Replace the lock in a forked process, where the thread that may hold it does not run."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_unlock_in_child)


class Atom:
    """One operation on operands, indivisible for the laws of a ring; a name; or a double constant.

    Equal ones are one object. An operation that gives a condition or a double is an atom by itself, one that gives an
    integer is a factor of an `Int`.
    """

    __slots__ = ("__weakref__", "args", "op", "range", "size", "step", "text")

    def __init__(self, op: str, args: tuple[Any, ...], least: Bound, most: Bound) -> None:
        """Construct an operation without simplification; use `atom`, arithmetic or `symbolic/expressions.py`."""
        self.op, self.args = op, args
        self.range: Range = OPERATIONS[op].range(bounds, args) if op in OPERATIONS else (least, most)
        self.size = 1 + sum(a.size for a in args if isinstance(a, Int)) if op in texts.WRITTEN else 1
        if self.size > MOST_ATOMS:
            raise OverflowError("an expression of too many names")
        self.text = texts.of_operation(op, args)
        self.step: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return atom, (self.op, self.args, *(self.range if self.op == NAME else ()))

    def __copy__(self) -> Atom:
        return self

    def __deepcopy__(self, memo: object) -> Atom:
        return self

    def __str__(self) -> str:
        return self.text


class Int:
    """An integer that depends on names: a sum of products in normal form. Equal ones are one object."""

    __slots__ = ("__weakref__", "_names", "_range", "_text", "size", "step", "terms")

    def __init__(self, terms: Terms, size: int) -> None:
        """Construct from normal terms; use `Int.name`, `parsed` and arithmetic instead."""
        self.terms, self.size = terms, size
        self._text: str | None = None
        self._range: Range | None = None
        self._names: tuple[str, ...] | None = None
        self.step: Any = None

    @staticmethod
    def name(text: str, least: Bound = 0, most: Bound = math.inf) -> Int:
        """Return the integer of that name, which is at least `least` and at most `most`."""
        return of_atom(atom(NAME, (text,), least, most))

    def __reduce__(self) -> tuple[Any, ...]:
        return of_terms, (self.terms,)

    def __copy__(self) -> Int:
        return self

    def __deepcopy__(self, memo: object) -> Int:
        return self

    def __str__(self) -> str:
        if self._text is None:
            self._text = texts.of_sum(self.terms)
        return self._text

    def __repr__(self) -> str:
        return f"Int({str(self)!r})"

    def __bool__(self) -> NoReturn:
        raise TypeError(f"whether {self} is zero is not known: compare it with an integer")

    def __add__(self, other: IntLike) -> IntLike:
        return _sum_of(_added(self, other, 1)) if isinstance(other, int | Int) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: IntLike) -> IntLike:
        return _sum_of(_added(self, other, -1)) if isinstance(other, int | Int) else NotImplemented

    def __rsub__(self, other: int) -> IntLike:
        return _sum_of(_added(other, self, -1))

    def __neg__(self) -> IntLike:
        return _sum_of({m: -c for m, c in self.terms})

    def __mul__(self, other: IntLike) -> IntLike:
        return _product(self, other) if isinstance(other, int | Int) else NotImplemented

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> IntLike:
        return math.prod([self] * exponent)

    def __floordiv__(self, other: IntLike) -> IntLike:
        return _floor(self, other) if isinstance(other, int | Int) else NotImplemented

    def __rfloordiv__(self, other: int) -> IntLike:
        return _floor(other, self)

    def __mod__(self, other: IntLike) -> IntLike:
        return _remainder(self, other) if isinstance(other, int | Int) else NotImplemented

    def __rmod__(self, other: int) -> IntLike:
        return _remainder(other, self)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it depends on, in the order in which they are written."""
        if self._names is None:
            self._names = tuple(dict.fromkeys(_names(self)))
        return self._names

    @property
    def is_name(self) -> bool:
        """Whether it is a single name."""
        return len(self.terms) == 1 and self.terms[0][1] == 1 and [a.op for a in self.terms[0][0]] == [NAME]

    @property
    def is_product(self) -> bool:
        """Whether it is a product of names and an integer."""
        return len(self.terms) == 1 and all(a.op == NAME for a in self.terms[0][0])

    @property
    def range(self) -> Range:
        """Bounds of its value: (least, greatest). They hold, but need not be reached."""
        if self._range is None:
            self._range = _least(self, DEPTH), -_least(-self, DEPTH)
        return self._range

    def provably_at_most(self, other: IntLike) -> bool:
        """Return whether it is at most `other` for all values that its names may have; False if that is not known."""
        return at_most(self, other)

    def substitute(self, /, **names: IntLike) -> IntLike:
        """Return the expression with names replaced; what only planners compute, such as a selection, stays as it is.

        Raises ZeroDivisionError, and ArithmeticError if a division that was taken to be exact leaves a remainder.
        """
        if names.keys().isdisjoint(self.names):
            return self
        total: IntLike = 0
        for monomial, coefficient in self.terms:
            product: IntLike = coefficient
            for factor in monomial:
                product = product * _substituted(factor, names)
            total = total + product
        return total


IntLike = int | Int
"""An integer, known or symbolic."""


# ---- construction


def atom(op: str, args: tuple[Any, ...], least: Bound = -math.inf, most: Bound = math.inf) -> Atom:
    """Return an operation without simplification."""
    key = op, args, least, most
    with _lock:
        existing = _atoms.get(key)
    if existing is None:
        new = Atom(op, args, least, most)
        with _lock:
            existing = _atoms.setdefault(key, new)
    return existing


def of_atom(single: Atom) -> Int:
    """Return an operation that gives an integer as an integer."""
    return _interned((((single,), 1),), single.size)


def of_terms(terms: Terms) -> IntLike:
    """Return the sum of products in normal order, as some of an integer's, or one of them scaled."""
    if not terms or not terms[0][0]:
        return terms[0][1] if terms else 0
    return _interned(terms, sum(a.size for m, _ in terms for a in m))


def _interned(normal: Terms, size: int) -> Int:
    with _lock:
        existing = _sums.get(normal)
        return _sums.setdefault(normal, Int(normal, size)) if existing is None else existing


def _sum_of(terms: Mapping[Monomial, int]) -> IntLike:
    """Return the sum of these products."""
    nonzero = {m: c for m, c in terms.items() if c}
    if not nonzero.keys() - {()}:
        return nonzero.get((), 0)
    size = sum(a.size for m in nonzero for a in m)
    if len(nonzero) > MOST_TERMS or size > MOST_ATOMS or any(c.bit_length() > MOST_BITS for c in nonzero.values()):
        raise OverflowError("an expression of too many terms")
    return _interned(in_order(nonzero.items()), size)


def _terms(value: IntLike) -> Terms:
    return value.terms if isinstance(value, Int) else (((), value),) if value else ()


def _added(a: IntLike, b: IntLike, times: int) -> dict[Monomial, int]:
    """Return the products of a + b * times."""
    return summed((*_terms(a), *((m, c * times) for m, c in _terms(b))))


def _product(a: IntLike, b: IntLike) -> IntLike:
    total: dict[Monomial, int] = {}
    for left, m in _terms(a):
        for right, n in _terms(b):
            both = tuple(sorted((*left, *right), key=lambda factor: factor.text))
            total[both] = total.get(both, 0) + m * n
            if len(total) > 2 * MOST_TERMS:
                raise OverflowError("an expression of too many terms")
    return _sum_of(total)


# ---- division


def exact_quotient(a: IntLike, b: IntLike) -> IntLike | None:
    """Return a / b if the division comes out whatever the names are, else None; also for b = 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and not a % b else None
    divisor = _terms(b)
    if not divisor:
        return None
    if isinstance(b, int):
        return _sum_of({m: c // b for m, c in _terms(a)}) if content(a) % b == 0 else None
    (lead, factor), quotient, rest = divisor[0], dict[Monomial, int](), a
    while (terms := _terms(rest)) and len(quotient) <= MOST_TERMS:
        above = without(terms[0][0], lead)
        if above is None or terms[0][1] % factor:
            return None
        quotient[above] = terms[0][1] // factor
        rest = rest - _product(_sum_of({above: quotient[above]}), b)
    return _sum_of(quotient) if not terms else None


def _floor(a: IntLike, b: IntLike) -> IntLike:
    """Return a // b."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if not _terms(b):
        raise ZeroDivisionError(f"{a} // 0")
    exact = exact_quotient(a, b)
    if exact is not None:
        return exact
    a, b = _cancelled(a, b)
    if not isinstance(b, int):
        return _rounded(a, b)
    # Whole multiples of the divisor come out of the division, but no constant: (4*a + b + 2) // 2 -> 2*a + (b + 2)//2
    constant = [term for term in _terms(a) if not term[0]]
    whole, others = whole_multiples((term for term in _terms(a) if term[0]), b)
    rest = _sum_of(dict([*others, *constant]))
    return _sum_of(dict(whole)) + (rest // b if isinstance(rest, int) else _rounded(rest, b))


def _cancelled(a: IntLike, b: IntLike) -> tuple[IntLike, IntLike]:
    """Return numerator and denominator without common factors, the denominator's first coefficient positive."""
    terms = (*_terms(a), *_terms(b))
    common = common_factors(terms)
    content = math.gcd(*(c for _, c in terms)) * (1 if _terms(b)[0][1] > 0 else -1)
    first, second = ({without(m, common) or (): c // content for m, c in _terms(x)} for x in (a, b))
    return _sum_of(first), _sum_of(second)


def _rounded(a: IntLike, b: IntLike) -> IntLike:
    """Return a // b for operands without common factors. -a // b is written as -ceiling(a / b)."""
    if is_reduced(bounds(a), bounds(b)):
        return 0
    up = _terms(a)[0][1] < 0
    if up:
        a = -a
    op = CEILING if up else FLOOR
    inner = only_atom(a)
    if inner is not None and inner.op == op and isinstance(b, int) and isinstance(inner.args[1], int):
        a, b = inner.args[0], inner.args[1] * b  # (a // 2) // 2 -> a // 4
    result = of_atom(atom(op, (a, b)))
    return -result if up else result


def only_atom(value: IntLike) -> Atom | None:
    """Return the atom that an integer consists of; None if it is more than that, or less."""
    terms = _terms(value)
    return terms[0][0][0] if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 else None


def ceiling(a: IntLike, b: IntLike) -> IntLike:
    """Return a / b rounded up."""
    return -(-a // b)


def exact_division(a: IntLike, b: IntLike) -> IntLike:
    """Return a / b, which is known to leave no remainder. Raises ArithmeticError for integers that leave one."""
    quotient = exact_quotient(a, b)
    if quotient is not None:
        return quotient
    if isinstance(a, int) and isinstance(b, int):
        raise ArithmeticError(f"{a} is no multiple of {b}")
    if not _terms(b):
        raise ZeroDivisionError(f"{a} / 0")
    return of_atom(atom(EXACT, _cancelled(a, b)))


def _remainder(a: IntLike, b: IntLike) -> IntLike:
    """Return a % b."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if not _terms(b):
        raise ZeroDivisionError(f"{a} % 0")
    if exact_quotient(a, b) is not None:
        return 0
    if _terms(b)[0][1] < 0:
        return -_remainder(-a, -b)
    if isinstance(b, int):
        a = _sum_of({m: c % b for m, c in _terms(a)})
    if is_reduced(bounds(a), bounds(b)):
        return a
    return of_atom(atom(MOD, (a, b))) if isinstance(a, Int) or isinstance(b, Int) else a % b


# ---- minimum and maximum


def smallest(*values: IntLike) -> IntLike:
    """Return the minimum."""
    return _extreme(MIN, values, at_most)


def largest(*values: IntLike) -> IntLike:
    """Return the maximum."""
    return _extreme(MAX, values, lambda a, b: at_most(b, a))


def _extreme(op: str, values: Sequence[IntLike], wins: Callable[[IntLike, IntLike], bool]) -> IntLike:
    flat = list[IntLike]()
    for value in values:
        only = only_atom(value)
        flat += only.args if only is not None and only.op == op else [value]
    candidates = undominated(flat, wins)
    if len(candidates) == 1:
        return candidates[0]
    return of_atom(atom(op, tuple(sorted(candidates, key=lambda v: (isinstance(v, Int), str(v))))))


def undominated(values: Iterable[IntLike], wins: Callable[[IntLike, IntLike], bool]) -> list[IntLike]:
    """Return the values that no other one wins against, in order: what a minimum or a maximum depends on."""
    candidates = list[IntLike]()
    for value in values:
        if not any(wins(k, value) for k in candidates):
            candidates = [k for k in candidates if not wins(value, k)] + [value]
    return candidates


def content(value: IntLike) -> int:
    """Return the greatest integer that divides a value whatever its names are."""
    return math.gcd(*(c for _, c in _terms(value)))


def affine(value: Int) -> tuple[Int, int, int]:
    """Return (y, factor, offset) with value = factor * y + offset, y has no constant, content 1, a positive lead."""
    *terms, last = value.terms
    offset = 0 if last[0] else last[1]
    terms = terms if offset else [*terms, last]
    factor = math.gcd(*(c for _, c in terms)) * (1 if terms[0][1] > 0 else -1)
    y = value if factor == 1 and not offset else of_terms(tuple((m, c // factor) for m, c in terms))
    assert isinstance(y, Int)
    return y, factor, offset


def solved(zero: IntLike, name: str) -> IntLike | None:
    """Return what a name equals because `zero` is 0; None if it does not follow, as from name * name - n."""
    for monomial, coefficient in _terms(zero):
        if len(monomial) == 1 and monomial[0].op == NAME and monomial[0].args == (name,):
            rest = exact_quotient(_sum_of({monomial: coefficient}) - zero, coefficient)
            return None if rest is None or (isinstance(rest, Int) and name in rest.names) else rest
    return None


def is_minimum_with(value: IntLike, other: IntLike) -> bool:
    """Return whether a value is the minimum of another one and others."""
    only = only_atom(value)
    return only is not None and only.op == MIN and other in only.args


# ---- bounds

DEPTH, MOST_RESOLVED, MOST_ARGUMENTS = 3, 3, 4
"""Divisions, minima and maxima that are resolved for a bound: one within another, of one sum, and arguments of each."""


def bounds(value: IntLike | Atom) -> Range:
    """Return the least and the greatest value of an integer."""
    return (value, value) if isinstance(value, int) else value.range


def at_most(a: IntLike, b: IntLike) -> bool:
    """Return whether a <= b for all values that their names may have; False if that is not known."""
    return bounds(b - a)[0] >= 0


def _least(value: IntLike, depth: int) -> Bound:
    """Return a lower bound: by the bounds of each term, or with a rounded division replaced by what it is at least."""
    if isinstance(value, int):
        return value
    result = _least_of_terms(value)
    if depth == 0 or result >= 0:
        return result
    alone = ((m, c) for m, c in value.terms if len(m) == 1 and m[0].op != NAME)
    for monomial, coefficient in islice(alone, MOST_RESOLVED):
        rest = value - _sum_of({monomial: coefficient})
        for number, bound in islice(_linear(monomial[0], coefficient), MOST_ARGUMENTS):
            less = _least(rest * number + bound, depth - 1)  # coefficient * atom >= bound / number
            result = max(result, less if isinstance(less, float) else -(-less // number))
    return result


def _least_of_terms(value: Int) -> Bound:
    common = common_factors(value.terms) if len(value.terms) > 1 else ()
    if common:
        inner = of_terms(divided(value.terms, common, 1))
        return multiplied(bounds(inner), product(a.range for a in common))[0]
    return of_sum((product(a.range for a in m), c) for m, c in value.terms)[0]


def _linear(single: Atom, coefficient: int) -> Iterator[tuple[int, IntLike]]:
    """Yield (n, e) with coefficient * atom >= e / n, n positive."""
    down = coefficient < 0
    if single.op in (FLOOR, CEILING) and isinstance(single.args[1], int):
        above, below = single.args
        shift = below - 1
        if single.op == FLOOR:
            yield below, coefficient * (above if down else above - shift)
        else:
            yield below, coefficient * (above + shift if down else above)
    elif single.op == (MIN if down else MAX):
        for arg in single.args:
            yield 1, coefficient * arg


# ---- substitution


def _substituted(single: Atom, names: Mapping[str, IntLike]) -> IntLike:
    if single.op == NAME:
        return names.get(single.args[0], of_atom(single))
    construct = CONSTRUCTORS.get(single.op)
    if construct is None:
        return of_atom(single)
    return construct(*(a.substitute(**names) if isinstance(a, Int) else a for a in single.args))


CONSTRUCTORS: Mapping[str, Callable[..., IntLike]] = {
    FLOOR: lambda a, b: a // b, CEILING: ceiling, EXACT: exact_division, MOD: lambda a, b: a % b,
    MIN: smallest, MAX: largest,
}  # fmt: skip
"""Functions that give an operation in normal form."""


def _names(value: IntLike) -> Iterator[str]:
    for monomial, _ in _terms(value):
        for factor in monomial:
            if factor.op == NAME:
                yield factor.args[0]
            else:
                for arg in factor.args:
                    yield from _names(arg)
