"""What is known of the integers and conditions of one run, implied by its earlier branches: ranges and equalities."""

from __future__ import annotations

import math
from functools import reduce
from operator import is_
from typing import Any, cast

from onnxfuse.symbolic.expressions import Expression
from onnxfuse.symbolic.integer import CONSTRUCTORS, Atom, Int, IntLike, affine, of_atom, of_terms, solved, undominated
from onnxfuse.symbolic.operations import FLOOR, MAX, MIN, MOD, NAME, OPERATIONS
from onnxfuse.symbolic.ranges import (
    ANY,
    TRUTH,
    Range,
    added,
    intersected,
    is_reduced,
    multiplied,
    of_sum,
    product,
    scaled,
    unscaled,
)
from onnxfuse.symbolic.terms import Monomial, Terms, common_factors, divided

DEPTH = 6
"""Operations within another that are looked into for a range."""


class Facts:
    """Ranges of sums of products, what names equal, and conditions that hold on one path."""

    def __init__(
        self, assumed: dict[Terms | Monomial | Atom, Range] | None = None, equals: dict[str, IntLike] | None = None
    ) -> None:
        self.assumed = assumed or {}
        """The range of a product, of a sum (`affine`), and of a condition: (1, 1) or (0, 0)."""
        self.equals = equals or {}
        """What a name equals, in names that are no keys here: extents that one node wants equal are one name."""
        self._ranges: dict[tuple[Int, int], Range] = {}
        self._canonical: dict[Int, IntLike] = {}

    def copy(self) -> Facts:
        """Return facts that can be added to."""
        copied = Facts(dict(self.assumed), dict(self.equals))
        copied._canonical = dict(self._canonical)
        return copied

    def canonical(self, value: Expression) -> Expression:
        """Return an integer simplified by what is known, in names that equal nothing else; others as they are."""
        if not self.assumed or not isinstance(value, Int):
            return value
        result = self._canonical.get(value)
        if result is None:
            try:
                result = self._simplified(value)
            except OverflowError:  # in the other names it is too large: as it stands it is right, too
                result = value
            self._canonical[value] = result
        return result

    def _simplified(self, value: Int) -> IntLike:
        factors = {factor for monomial, _ in value.terms for factor in monomial}
        parts = {f: part for f in factors if (part := self._simplified_factor(f)) is not None}
        if not parts:
            return value
        products = (math.prod(parts[f] if f in parts else of_atom(f) for f in m) * c for m, c in value.terms)
        return sum(products, start=0)

    def _simplified_factor(self, factor: Atom) -> IntLike | None:
        """Return what a factor is by what is known; None if it is no simpler."""
        if factor.op == NAME:
            return self.equals.get(factor.args[0])
        if factor.op not in CONSTRUCTORS:
            return None
        args: list[Any] = list(map(self.canonical, factor.args))
        if factor.op in (MIN, MAX):
            args = undominated(args, self._at_most if factor.op == MIN else lambda a, b: self._at_most(b, a))
        elif factor.op in (FLOOR, MOD):
            a, b = args
            # For (n - 1) // n the ranges of both say nothing: there, a < b is a - b < 0.
            least, most = self.range(a)
            of, by = ((least, most), (b, b)) if isinstance(b, int) else ((least, self.range(a - b)[1]), (0, 0))
            if is_reduced(of, by):
                return 0 if factor.op == FLOOR else cast(IntLike, a)
        if len(args) == len(factor.args) and all(map(is_, args, factor.args)):
            return None
        return CONSTRUCTORS[factor.op](*args)

    def _at_most(self, a: IntLike, b: IntLike) -> bool:
        return self.range(b - a)[0] >= 0

    def range(self, value: Expression, depth: int = DEPTH) -> Range:
        """Return bounds of an integer or a condition."""
        value = self.canonical(value)
        if isinstance(value, int):
            return value, value
        if isinstance(value, Atom):
            return self.assumed.get(value, TRUTH)
        if depth == 0 or not self.assumed:
            return value.range
        result = self._ranges.get((value, depth))
        if result is None:
            result = self._ranges[value, depth] = self._range(value, depth)
        return result

    def _range(self, value: Int, depth: int) -> Range:
        found = of_sum((self._product(m, depth), c) for m, c in value.terms)
        if len(value.terms) > 1:
            y, factor, offset = affine(value)
            if y.terms in self.assumed:
                found = intersected(found, of_sum([(self.assumed[y.terms], factor)], offset))
            if common := common_factors(value.terms):
                inner = of_terms(divided(value.terms, common, 1))
                found = intersected(found, multiplied(self.range(inner, depth - 1), self._product(common, depth)))
        return intersected(found, value.range)

    def _product(self, monomial: Monomial, depth: int) -> Range:
        range_ = product(self._factor(factor, depth) for factor in monomial)
        return intersected(range_, self.assumed[monomial]) if len(monomial) > 1 and monomial in self.assumed else range_

    def _factor(self, factor: Atom, depth: int) -> Range:
        range_ = self.assumed.get((factor,), ANY)
        if factor.op == NAME:
            return intersected(range_, factor.range)
        return intersected(range_, OPERATIONS[factor.op].range(lambda a: self.range(a, depth - 1), factor.args))

    def implied(self, condition: Atom) -> bool | None:
        """Return a condition's value if it follows, else None."""
        if condition in self.assumed:
            return self.assumed[condition] == (1, 1)
        op, args = condition.op, condition.args
        if op == "not":
            inner = self.implied(args[0])
            return None if inner is None else not inner
        if op in ("and", "or"):
            sides = [bool(a) if isinstance(a, int) else self.implied(a) for a in args]
            if (op == "or") in sides:
                return op == "or"
            return None if None in sides else op == "and"
        if op == "lt":
            low, high = self.range(args[1])
            return True if low > args[0] else False if high <= args[0] else None
        if op == "eq":
            low, high = self.range(args[0])
            return True if low == high == args[1] else None if low <= args[1] <= high else False
        return None

    def assume(self, condition: Atom, holds: bool) -> None:
        """Add a condition, or that it does not hold."""
        self._add(condition, (int(holds), int(holds)))
        op, args = condition.op, condition.args
        if op == "not":
            self.assume(args[0], not holds)
        if (op == "and" and holds) or (op == "or" and not holds):
            for part in args:
                self.assume(part, holds)
        if op == "lt":
            self.narrow(args[1], (args[0] + 1, math.inf) if holds else (-math.inf, args[0]))
        if op == "eq" and holds:
            self.narrow(args[0], (args[1], args[1]))
        elif op == "eq":
            low, high = self.range(args[0])
            self.narrow(args[0], (low + (low == args[1]), high - (high == args[1])))

    def narrow(self, value: Int, to: Range) -> None:
        """Add that an integer is in a range."""
        short = self.canonical(value)
        if not isinstance(short, Int):
            return
        y, factor, offset = affine(short)
        low, high = unscaled((added(to[0], -offset), added(to[1], -offset)), factor)
        if len(y.terms) > 1:
            self._add(y.terms, (low, high))
            ends = [scaled(self._product(m, DEPTH), c) for m, c in y.terms]
            for n, (monomial, c) in enumerate(y.terms):
                rest = [e for k, e in enumerate(ends) if k != n]
                margin = reduce(added, (-e[1] for e in rest), low), reduce(added, (-e[0] for e in rest), high)
                self._add(monomial, unscaled(margin, c))
        else:
            self._add(y.terms[0][0], (low, high))
        if low == high:
            self._equate(y - int(low))

    def _equate(self, zero: IntLike) -> None:
        """Add that an integer is 0, if that says what a name equals: the last one of those."""
        for name in sorted(zero.names if isinstance(zero, Int) else (), key=lambda n: (len(n), n), reverse=True):
            value = solved(zero, name)
            if value is None:
                continue
            known = [(self._integer(key), range_) for key, range_ in self.assumed.items()]
            self.equals = {
                n: v.substitute(**{name: value}) if isinstance(v, Int) else v for n, v in self.equals.items()
            }
            self.equals[name] = value
            self._canonical.clear()
            self._ranges.clear()
            for integer, range_ in known:
                if isinstance(integer, Int) and name in integer.names:
                    self.narrow(integer, range_)
            return

    @staticmethod
    def _integer(key: Terms | Monomial | Atom) -> IntLike:
        """Return the integer whose range is assumed, 0 for a condition."""
        if isinstance(key, Atom):
            return 0
        return of_terms(key if isinstance(key[0], tuple) else ((key, 1),))

    def _add(self, key: Terms | Monomial | Atom, to: Range) -> None:
        before = self.assumed.get(key, ANY)
        self.assumed[key] = intersected(before, to)
        if self.assumed[key] != before:
            self._ranges.clear()
