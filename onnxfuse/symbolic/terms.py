"""Sums of products, as tuples: what an integer consists of in normal form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from onnxfuse.symbolic.integer import Atom

T = TypeVar("T")

Monomial = tuple["Atom", ...]
"""A product of atoms in order of their text."""

Terms = tuple[tuple[Monomial, int], ...]
"""A sum of products with coefficients that are not zero, those of higher degree first, the constant last."""


def summed(terms: Iterable[tuple[T, int]]) -> dict[T, int]:
    """Return the coefficient of each product of a sum, 0 where they cancel."""
    total: dict[T, int] = {}
    for product, coefficient in terms:
        total[product] = total.get(product, 0) + coefficient
    return total


def whole_multiples(terms: Iterable[tuple[T, int]], by: int) -> tuple[list[tuple[T, int]], list[tuple[T, int]]]:
    """Return the quotients of the terms that `by` divides, and the other terms: (4 a + b) / 2 -> 2 a, and b."""
    whole, rest = list[tuple[T, int]](), list[tuple[T, int]]()
    for product, coefficient in terms:
        if coefficient % by == 0:
            whole.append((product, coefficient // by))
        else:
            rest.append((product, coefficient))
    return whole, rest


def in_order(terms: Iterable[tuple[Monomial, int]]) -> Terms:
    """Return the products of a sum in their order."""
    return tuple(sorted(terms, key=lambda term: (-len(term[0]), tuple(a.text for a in term[0]))))


def without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """Return a product without some of its factors, None if it does not have them all."""
    rest = list(monomial)
    for atom in factors:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def common_factors(terms: Terms) -> Monomial:
    """Return the atoms that are factors of each product."""
    common = list(terms[0][0])
    for monomial, _ in terms[1:]:
        rest, shared = list(monomial), []
        for atom in common:
            if atom in rest:
                rest.remove(atom)
                shared.append(atom)
        common = shared
    return tuple(common)


def divided(terms: Terms, factors: Monomial, number: int) -> Terms:
    """Return a sum divided by factors that each of its products has, and by a number that divides each of them."""
    return in_order((without(m, factors) or (), c // number) for m, c in terms)
