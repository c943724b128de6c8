"""Ranges of the integers and conditions of one run, implied by its earlier branches."""

from __future__ import annotations

import math
from functools import reduce

from onnxfuse.symbolic.expressions import Expression
from onnxfuse.symbolic.integer import Atom, Int, affine
from onnxfuse.symbolic.operations import (
    ANY,
    NAME,
    OPERATIONS,
    TRUTH,
    Range,
    added,
    intersected,
    of_sum,
    product,
    scaled,
)
from onnxfuse.symbolic.terms import Monomial, Terms

DEPTH = 6
"""Operations within another that are looked into for a range."""


class Facts:
    """Ranges of sums of products, and conditions, that hold on one path."""

    def __init__(self, assumed: dict[Terms | Monomial | Atom, Range] | None = None) -> None:
        self.assumed = assumed or {}
        """The range of a product, of a sum (`affine`), and of a condition: (1, 1) or (0, 0)."""
        self._ranges: dict[tuple[Int, int], Range] = {}

    def copy(self) -> Facts:
        """Return facts that can be added to."""
        return Facts(dict(self.assumed))

    def range(self, value: Expression, depth: int = DEPTH) -> Range:
        """Return bounds of an integer or a condition."""
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
        y, factor, offset = affine(value)
        low, high = _quotient((added(to[0], -offset), added(to[1], -offset)), factor)
        if len(y.terms) > 1:
            self._add(y.terms, (low, high))
            ends = [scaled(self._product(m, DEPTH), c) for m, c in y.terms]
            for n, (monomial, c) in enumerate(y.terms):
                rest = [e for k, e in enumerate(ends) if k != n]
                margin = reduce(added, (-e[1] for e in rest), low), reduce(added, (-e[0] for e in rest), high)
                self._add(monomial, _quotient(margin, c))
        else:
            self._add(y.terms[0][0], (low, high))

    def _add(self, key: Terms | Monomial | Atom, to: Range) -> None:
        before = self.assumed.get(key, ANY)
        self.assumed[key] = intersected(before, to)
        if self.assumed[key] != before:
            self._ranges.clear()


def _quotient(ends: Range, factor: int) -> Range:
    """Return the integers that are in a range when they are multiplied by `factor`."""
    low, high = ends if factor > 0 else (-ends[1], -ends[0])
    return (
        low if isinstance(low, float) else -(-low // abs(factor)),
        high if isinstance(high, float) else high // abs(factor),
    )
