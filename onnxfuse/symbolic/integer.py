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

MOST_TERMS = 64
"""Maximum terms of a sum; a computation beyond raises OverflowError. A sum times itself has their square."""

MOST_ATOMS = 256
"""Maximum names in an expression, each counted as often as it occurs."""

MOST_BITS = 4096
"""Maximum bits of a coefficient."""

Bound = int | float
"""An integer or an infinity."""

Range = tuple[Bound, Bound]
"""Least and greatest value."""


class Atom:
    """An indivisible factor: a name, or a rounded division, remainder, minimum or maximum of expressions."""

    __slots__ = ("__weakref__", "args", "least", "most", "op", "size", "text")

    def __init__(self, op: str, args: tuple[Any, ...], least: Bound, most: Bound) -> None:
        self.op, self.args, self.least, self.most = op, args, least, most
        self.size = 1 if op == NAME else sum(a.size for a in args if isinstance(a, Int)) + 1
        if self.size > MOST_ATOMS:
            raise OverflowError("an expression of too many names")
        self.text: str = _WRITTEN[op](*args)


NAME, FLOOR, CEILING, EXACT, MOD, MIN, MAX = "name", "floor", "ceiling", "exact", "mod", "min", "max"
"""Kinds of atoms. `floor` and `ceiling` divide and round down or up; `exact` is a division without remainder."""

Monomial = tuple[Atom, ...]
"""A product of atoms in order of their text."""

Terms = tuple[tuple[Monomial, int], ...]
"""A sum of products with coefficients that are not zero, those of higher degree first, the constant last."""

_atoms: weakref.WeakValueDictionary[tuple[Any, ...], Atom] = weakref.WeakValueDictionary()
_sums: weakref.WeakValueDictionary[Terms, Int] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _unlock_in_child() -> None:
    """Replace the lock in a forked process, where the thread that may hold it does not run."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock_in_child)


class Int:
    """An integer that depends on names: a sum of products in normal form. Equal ones are one object."""

    __slots__ = ("__weakref__", "_names", "_range", "_text", "size", "terms")

    def __init__(self, terms: Terms, size: int) -> None:
        """Construct from normal terms; use `Int.name`, `parsed` and arithmetic instead."""
        self.terms, self.size = terms, size
        self._text: str | None = None
        self._range: Range | None = None
        self._names: tuple[str, ...] | None = None

    @staticmethod
    def name(text: str, least: Bound = 0, most: Bound = math.inf) -> Int:
        """Return the integer of that name, which is at least `least` and at most `most`."""
        made = _sum_of({(_atom(NAME, (text,), least, most),): 1})
        assert isinstance(made, Int)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (tuple((tuple((a.op, a.args, a.least, a.most) for a in m), c) for m, c in self.terms),)

    def __copy__(self) -> Int:
        return self

    def __deepcopy__(self, memo: object) -> Int:
        return self

    def __str__(self) -> str:
        if self._text is None:
            self._text = _text(self)
        return self._text

    def __repr__(self) -> str:
        return f"Int({str(self)!r})"

    def __bool__(self) -> NoReturn:
        raise TypeError(f"whether {self} is zero is not known: compare it with an integer")

    def __add__(self, other: IntLike) -> IntLike:
        return _sum_of(_added(self, other)) if isinstance(other, int | Int) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: IntLike) -> IntLike:
        return self + -other if isinstance(other, int | Int) else NotImplemented

    def __rsub__(self, other: int) -> IntLike:
        return -self + other

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
        """Return the expression with names replaced.

        Raises ZeroDivisionError, and ArithmeticError if a division that was taken to be exact leaves a remainder.
        """
        if names.keys().isdisjoint(self.names):
            return self
        total: IntLike = 0
        for monomial, coefficient in self.terms:
            product: IntLike = coefficient
            for atom in monomial:
                product = product * _substituted(atom, names)
            total = total + product
        return total


IntLike = int | Int
"""An integer, known or symbolic."""


# ---- construction


def _atom(op: str, args: tuple[Any, ...], least: Bound = -math.inf, most: Bound = math.inf) -> Atom:
    key = op, args, least, most
    with _lock:
        found = _atoms.get(key)
    if found is None:
        made = Atom(op, args, least, most)
        with _lock:
            found = _atoms.setdefault(key, made)
    return found


def _key(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    return -len(monomial), tuple(a.text for a in monomial)


def _sum_of(terms: Mapping[Monomial, int]) -> IntLike:
    """Return the sum of these products."""
    kept = {m: c for m, c in terms.items() if c}
    if not kept.keys() - {()}:
        return kept.get((), 0)
    size = sum(a.size for m in kept for a in m)
    if len(kept) > MOST_TERMS or size > MOST_ATOMS or any(c.bit_length() > MOST_BITS for c in kept.values()):
        raise OverflowError("an expression of too many terms")
    normal = tuple(sorted(kept.items(), key=lambda term: _key(term[0])))
    with _lock:
        return _sums.setdefault(normal, Int(normal, size))


def _restored(terms: Iterable[tuple[Any, int]]) -> IntLike:
    return _sum_of({tuple(_atom(*a) for a in monomial): c for monomial, c in terms})


def _single(atom: Atom) -> IntLike:
    return _sum_of({(atom,): 1})


def _terms(value: IntLike) -> Terms:
    return value.terms if isinstance(value, Int) else (((), value),) if value else ()


def _added(a: IntLike, b: IntLike) -> dict[Monomial, int]:
    total = dict(_terms(a))
    for monomial, coefficient in _terms(b):
        total[monomial] = total.get(monomial, 0) + coefficient
    return total


def _product(a: IntLike, b: IntLike) -> IntLike:
    total: dict[Monomial, int] = {}
    for left, m in _terms(a):
        for right, n in _terms(b):
            both = tuple(sorted((*left, *right), key=lambda atom: atom.text))
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
    (lead, factor), found, rest = divisor[0], dict[Monomial, int](), a
    while (terms := _terms(rest)) and len(found) <= MOST_TERMS:
        above = _without(terms[0][0], lead)
        if above is None or terms[0][1] % factor:
            return None
        found[above] = terms[0][1] // factor
        rest = rest - _product(_sum_of({above: found[above]}), b)
    return _sum_of(found) if not terms else None


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """Return a product without some of its factors, None if it does not have them all."""
    rest = list(monomial)
    for atom in factors:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


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
    # Whole multiples of the divisor come out of the division: (4*a + b + 3) // 2 -> 2*a + (b + 3)//2
    whole = {m: c // b for m, c in _terms(a) if m and c % b == 0}
    rest = _sum_of({m: c for m, c in _terms(a) if m not in whole})
    return _sum_of(whole) + (rest // b if isinstance(rest, int) else _rounded(rest, b))


def _cancelled(a: IntLike, b: IntLike) -> tuple[IntLike, IntLike]:
    """Return numerator and denominator without common factors, the denominator's first coefficient positive."""
    terms = (*_terms(a), *_terms(b))
    common = _common_factors(terms)
    content = math.gcd(*(c for _, c in terms)) * (1 if _terms(b)[0][1] > 0 else -1)
    first, second = ({_without(m, common) or (): c // content for m, c in _terms(x)} for x in (a, b))
    return _sum_of(first), _sum_of(second)


def _common_factors(terms: Terms) -> Monomial:
    common = list(terms[0][0])
    for monomial, _ in terms[1:]:
        rest, kept = list(monomial), list[Atom]()
        for atom in common:
            if atom in rest:
                rest.remove(atom)
                kept.append(atom)
        common = kept
    return tuple(common)


def _rounded(a: IntLike, b: IntLike) -> IntLike:
    """Return a // b for operands without common factors. -a // b is written as -ceiling(a / b)."""
    least, most = bounds(a)
    if least >= 0 and most < bounds(b)[0]:
        return 0
    up = _terms(a)[0][1] < 0
    if up:
        a = -a
    op = CEILING if up else FLOOR
    inner = _only_atom(a)
    if inner is not None and inner.op == op and isinstance(b, int) and isinstance(inner.args[1], int):
        a, b = inner.args[0], inner.args[1] * b  # (a // 2) // 2 -> a // 4
    made = _single(_atom(op, (a, b)))
    return -made if up else made


def _only_atom(value: IntLike) -> Atom | None:
    terms = _terms(value)
    return terms[0][0][0] if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 else None


def ceiling(a: IntLike, b: IntLike) -> IntLike:
    """Return a / b rounded up."""
    return -(-a // b)


def exact_division(a: IntLike, b: IntLike) -> IntLike:
    """Return a / b, which is known to leave no remainder. Raises ArithmeticError for integers that leave one."""
    found = exact_quotient(a, b)
    if found is not None:
        return found
    if isinstance(a, int) and isinstance(b, int):
        raise ArithmeticError(f"{a} is no multiple of {b}")
    if not _terms(b):
        raise ZeroDivisionError(f"{a} / 0")
    return _single(_atom(EXACT, _cancelled(a, b)))


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
    least, most = bounds(a)
    if least >= 0 and most < bounds(b)[0]:
        return a
    return _single(_atom(MOD, (a, b))) if isinstance(a, Int) or isinstance(b, Int) else a % b


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
        atom = _only_atom(value)
        flat += atom.args if atom is not None and atom.op == op else [value]
    kept = list[IntLike]()
    for value in flat:
        if not any(wins(k, value) for k in kept):
            kept = [k for k in kept if not wins(value, k)] + [value]
    if len(kept) == 1:
        return kept[0]
    return _single(_atom(op, tuple(sorted(kept, key=lambda v: (isinstance(v, Int), str(v))))))


def content(value: IntLike) -> int:
    """Return the greatest integer that divides a value whatever its names are."""
    return math.gcd(*(c for _, c in _terms(value)))


def solved(zero: IntLike, name: str) -> IntLike | None:
    """Return what a name equals because `zero` is 0; None if it does not follow, as from name * name - n."""
    for monomial, coefficient in _terms(zero):
        if len(monomial) == 1 and monomial[0].op == NAME and monomial[0].args == (name,):
            rest = exact_quotient(_sum_of({monomial: coefficient}) - zero, coefficient)
            return None if rest is None or (isinstance(rest, Int) and name in rest.names) else rest
    return None


def is_minimum_with(value: IntLike, other: IntLike) -> bool:
    """Return whether a value is the minimum of another one and others."""
    atom = _only_atom(value)
    return atom is not None and atom.op == MIN and other in atom.args


# ---- bounds

DEPTH, MOST_RESOLVED, MOST_ARGUMENTS = 3, 3, 4
"""Divisions, minima and maxima that are resolved for a bound: one within another, of one sum, and arguments of each."""


def bounds(value: IntLike) -> Range:
    """Return the least and the greatest value of an integer."""
    return value.range if isinstance(value, Int) else (value, value)


def at_most(a: IntLike, b: IntLike) -> bool:
    """Return whether a <= b for all values that their names may have; False if that is not known."""
    return bounds(b - a)[0] >= 0


def _least(value: IntLike, depth: int) -> Bound:
    """Return a lower bound: by the bounds of each term, or with a rounded division replaced by what it is at least."""
    if isinstance(value, int):
        return value
    found = _least_of_terms(value)
    if depth == 0 or found >= 0:
        return found
    alone = ((m, c) for m, c in value.terms if len(m) == 1 and m[0].op != NAME)
    for monomial, coefficient in islice(alone, MOST_RESOLVED):
        rest = value - _sum_of({monomial: coefficient})
        for number, bound in islice(_linear(monomial[0], coefficient), MOST_ARGUMENTS):
            less = _least(rest * number + bound, depth - 1)  # coefficient * atom >= bound / number
            found = max(found, less if math.isinf(less) else -(-less // number))
    return found


def _least_of_terms(value: Int) -> Bound:
    common = _common_factors(value.terms) if len(value.terms) > 1 else ()
    if common:
        inner = _sum_of({_without(m, common) or (): c for m, c in value.terms})
        return _multiplied(bounds(inner), _range_of_product(common))[0]
    return sum(_multiplied(_range_of_product(m), (c, c))[0] for m, c in value.terms)


def _linear(atom: Atom, coefficient: int) -> Iterator[tuple[int, IntLike]]:
    """Yield (n, e) with coefficient * atom >= e / n, n positive."""
    down = coefficient < 0
    if atom.op in (FLOOR, CEILING) and isinstance(atom.args[1], int):
        above, below = atom.args
        shift = below - 1
        if atom.op == FLOOR:
            yield below, coefficient * (above if down else above - shift)
        else:
            yield below, coefficient * (above + shift if down else above)
    elif atom.op == (MIN if down else MAX):
        for arg in atom.args:
            yield 1, coefficient * arg


def _range_of_product(monomial: Monomial) -> Range:
    found: Range = 1, 1
    for atom in monomial:
        found = _multiplied(found, _range_of(atom))
    return found


def _multiplied(a: Range, b: Range) -> Range:
    ends = [0 if x == 0 or y == 0 else x * y for x in a for y in b]
    return min(ends), max(ends)


def _range_of(atom: Atom) -> Range:
    if atom.op == NAME:
        return atom.least, atom.most
    ranges = [bounds(a) for a in atom.args]
    if atom.op in (MIN, MAX):
        choose = min if atom.op == MIN else max
        return choose(r[0] for r in ranges), choose(r[1] for r in ranges)
    above, (least, most) = ranges
    if atom.op == MOD:
        return (0, most - 1 if above[0] < 0 else min(most - 1, above[1])) if least >= 0 else (-math.inf, math.inf)
    if least < 0:
        return -math.inf, math.inf
    ends = [_divided(x, y, atom.op == CEILING) for x in above for y in (max(least, 1), max(most, 1))]
    return min(ends), max(ends)


def _divided(a: Bound, b: Bound, up: bool) -> Bound:
    if math.isinf(a):
        return a
    if math.isinf(b):
        return 0 if a == 0 or (a < 0) == up else 1 if up else -1
    return -(-a // b) if up else a // b


# ---- substitution


def _substituted(atom: Atom, names: Mapping[str, IntLike]) -> IntLike:
    if atom.op == NAME:
        return names.get(atom.args[0], _single(atom))
    args = [a.substitute(**names) if isinstance(a, Int) else a for a in atom.args]
    return OPERATIONS[atom.op](*args)


OPERATIONS: Mapping[str, Callable[..., IntLike]] = {
    FLOOR: lambda a, b: a // b, CEILING: ceiling, EXACT: exact_division, MOD: lambda a, b: a % b,
    MIN: smallest, MAX: largest,
}  # fmt: skip


def _names(value: IntLike) -> Iterator[str]:
    for monomial, _ in _terms(value):
        for atom in monomial:
            if atom.op == NAME:
                yield atom.args[0]
            else:
                for arg in atom.args:
                    yield from _names(arg)


# ---- text


def is_word(text: str) -> bool:
    """Return whether a name can be written in an expression without parentheses."""
    return text.isidentifier()


def _text(value: Int) -> str:
    return _written(value)[0]


def _written(value: Int) -> tuple[str, bool]:
    """Return the text of an expression, and whether it can be an operand of a division as it stands."""
    if len(value.terms) == 1:
        return _written_product(*value.terms[0])
    common, lead = _common_factors(value.terms), abs(value.terms[0][1])
    number = lead if all(c % lead == 0 for _, c in value.terms) else 1
    if common or number > 1:
        inner = _sum_of({_without(m, common) or (): c // number for m, c in value.terms})
        assert isinstance(inner, Int)
        parts = sorted([_written_sum(inner.terms), *map(_factor, common)])
        return "*".join(parts if number == 1 else [str(number), *parts]), False
    return _written_sum(value.terms), True


def _written_product(monomial: Monomial, coefficient: int) -> tuple[str, bool]:
    if coefficient == 1 and len(monomial) == 1:
        only = monomial[0]
        return only.text, is_word(only.text) if only.op == NAME else only.op in _ENCLOSED
    sign, number = "-" if coefficient < 0 else "", abs(coefficient)
    parts = sorted(map(_factor, monomial))
    return sign + "*".join(parts if number == 1 else [str(number), *parts]), False


def _written_sum(terms: Terms) -> str:
    """Return a sum in parentheses, what is added before what is subtracted."""
    text = ""
    for monomial, coefficient in sorted(terms, key=lambda term: term[1] < 0):
        number, parts = abs(coefficient), sorted(map(_factor, monomial))
        if number > 1 or not monomial:
            parts = [str(number), *parts]
        elif coefficient > 0 and len(monomial) == 1 and monomial[0].op in _ENCLOSED:
            parts = [parts[0][1:-1]]  # a quotient binds closer than a sum
        text += ("-" if coefficient < 0 else "+" if text else "") + "*".join(parts)
    return f"({text})"


_ENCLOSED = (FLOOR, EXACT, MOD)
"""Kinds of atoms that are written in parentheses."""


def _factor(atom: Atom) -> str:
    return atom.text if atom.op != NAME or is_word(atom.text) else f"({atom.text})"


def _operand(value: IntLike) -> str:
    if isinstance(value, int):
        return str(value) if value >= 0 else f"({value})"
    text, alone = _written(value)
    return text if alone else f"({text})"


_WRITTEN: Mapping[str, Callable[..., str]] = {
    NAME: lambda text: text,
    FLOOR: lambda a, b: f"({_operand(a)}//{_operand(b)})",
    CEILING: lambda a, b: f"ceil({_operand(a)}/{_operand(b)})",
    EXACT: lambda a, b: f"({_operand(a)}/{_operand(b)})",
    MOD: lambda a, b: f"({_operand(a)}%{_operand(b)})",
    MIN: lambda *args: f"min({','.join(map(str, args))})",
    MAX: lambda *args: f"max({','.join(map(str, args))})",
}
