"""Index maps: operand indices as linear expressions over the digits of the output's coordinates.

An output element has coordinates in a mixed-radix digit space (outermost digit first). The coordinate of a value that
is read through Transpose, Slice, Reshape, ... is an `Index`: a constant plus multiples of digits. A Reshape that splits
a dimension splits digits; where it does not divide evenly, a quotient or remainder stays in the index and the kernel
computes it, so that every map can be expressed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxfuse.symbolic import recording
from onnxfuse.symbolic.operations import FLOOR, MOD, OPERATIONS
from onnxfuse.symbolic.ranges import Range, intersected, is_reduced, of_sum
from onnxfuse.symbolic.strides import Shape
from onnxfuse.symbolic.terms import summed, whole_multiples


@dataclass(frozen=True)
class SpaceDigit:
    """A digit of the space, by its index."""

    number: int


@dataclass(frozen=True)
class Divided:
    """Quotient or remainder of an index that does not divide evenly into digits."""

    index: Index
    by: int = field(hash=False)
    op: str
    """`FLOOR` or `MOD`."""


@dataclass(frozen=True)
class Folded:
    """The element of an axis that stands at an index before or behind it, as around a Pad by its own elements."""

    index: Index
    extent: int = field(hash=False)
    """Of the axis."""
    mode: str
    """`REFLECT` or `EDGE`."""

    def at(self, coordinates: Sequence[Any]) -> Any:
        """Return the value for these coordinates along the digits: integers, or arrays of them."""
        index, last = self.index.at(coordinates), self.extent - 1
        if self.mode == EDGE:
            return (abs(index) - abs(index - last) + last) // 2
        return last - abs(last - abs(index))


REFLECT, EDGE = "reflect", "edge"
"""How an index is folded: mirrored at the first and the last element, or the nearest one of them."""

Atom = SpaceDigit | Divided | Folded


@dataclass(frozen=True)
class Index:
    """constant + sum of factor * atom."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    def __hash__(self) -> int:
        if recording.active() is None:
            return hash((self.terms, self.constant))
        # Hash the digits alone, so that recording a launch program does not branch on the numbers.
        return hash(tuple(a for a, _ in self.terms))

    @staticmethod
    def digit(number: int) -> Index:
        """Return the coordinate along a digit of the space."""
        return Index(((SpaceDigit(number), 1),))

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, Index):
            return _index([*self.terms, *other.terms], self.constant + other.constant)
        return Index(self.terms, self.constant + other)

    def __mul__(self, factor: int) -> Index:
        return _index(((a, f * factor) for a, f in self.terms), self.constant * factor)

    def factor(self, number: int) -> int:
        """Return the coefficient of a digit."""
        for atom, factor in self.terms:  # a loop: a plan of several Pads asks a hundred thousand times
            if isinstance(atom, SpaceDigit) and atom.number == number:
                return factor
        return 0

    def at(self, coordinates: Sequence[Any]) -> Any:
        """Return the value for these coordinates along the digits: integers, or arrays of them."""
        total: Any = self.constant
        for atom, factor in self.terms:
            if isinstance(atom, SpaceDigit):
                value = coordinates[atom.number]
            elif isinstance(atom, Folded):
                value = atom.at(coordinates)
            else:
                inside = atom.index.at(coordinates)
                value = inside // atom.by if atom.op == FLOOR else inside % atom.by
            total = total + factor * value
        return total

    def inner(self) -> Iterator[Index]:
        """Yield this index and those inside its quotients, remainders and folded indices."""
        yield self
        for atom, _ in self.terms:
            if not isinstance(atom, SpaceDigit):
                yield from atom.index.inner()

    def divides_by_digit(self, number: int) -> bool:
        """Return whether the digit occurs inside a quotient, a remainder or a folded index."""
        return any(i.factor(number) for i in self.inner() if i is not self)


def _index(terms: Iterable[tuple[Atom, int]], constant: int) -> Index:
    factors = summed(terms)
    for atom, factor in list(factors.items()):
        if isinstance(atom, Divided) and atom.op == MOD and factor:
            quotient = Divided(atom.index, atom.by, FLOOR)
            if factors.get(quotient) == factor * atom.by:
                # (i / n) n + i % n -> i
                del factors[quotient], factors[atom]
                whole = [(a, f * factor) for a, f in atom.index.terms]
                return _index([*factors.items(), *whole], constant + atom.index.constant * factor)
    return Index(tuple(sorted(((a, f) for a, f in factors.items() if f), key=_order)), constant)


def _order(term: tuple[Atom, int]) -> tuple[int, int, str]:
    atom, _ = term
    return (0, atom.number, "") if isinstance(atom, SpaceDigit) else (1, 0, repr(atom))


@dataclass(frozen=True)
class Bound:
    """low <= index < high."""

    index: Index
    low: int = field(hash=False)
    high: int = field(hash=False)

    def excludes(self, other: Bound) -> bool:
        """Return whether the two are mutually exclusive."""
        return self.index == other.index and (self.high <= other.low or other.high <= self.low)


@dataclass
class Space:
    """Digits of the output's coordinates; `divide` splits them where a map requires it."""

    extents: dict[int, int] = field(default_factory=dict)
    """Extents of current digits, by index, outermost first."""
    cuts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Split digits, each with its outer and inner replacement."""

    def axis(self, extent: int) -> Index:
        """Return the coordinate along a new innermost axis of the space."""
        if extent == 1:
            return Index()
        number = len(self.extents) + len(self.cuts)
        self.extents[number] = extent
        return Index.digit(number)

    @property
    def offset(self) -> Index:
        """The row-major offset of an element in a dense tensor over the current digits."""
        return linear(tuple(map(Index.digit, self.extents)), tuple(self.extents.values()))

    def resolved(self, index: Index) -> Index:
        """Return `index` in terms of current digits."""
        if not any(not isinstance(a, SpaceDigit) or a.number in self.cuts for a, _ in index.terms):
            return index
        result = Index((), index.constant)
        for atom, factor in index.terms:
            if isinstance(atom, Divided):
                result += self._part(self.resolved(atom.index), atom.by, atom.op) * factor
            elif isinstance(atom, Folded):
                result += self.folded(atom.index, atom.extent, atom.mode) * factor
            elif atom.number in self.cuts:
                outer, inner = self.cuts[atom.number]
                both = Index.digit(outer) * self.extents_of(inner) + Index.digit(inner)
                result += self.resolved(both) * factor
            else:
                result += Index(((atom, factor),))
        return result

    def extents_of(self, number: int) -> int:
        """Return the extent of a digit, current or split."""
        if number not in self.cuts:
            return self.extents[number]
        return math.prod(self.extents_of(n) for n in self.cuts[number])

    def range(self, index: Index, within: tuple[Bound, ...] = ()) -> Range:
        """Return the minimum and maximum of `index`, with each digit varying independently.

        `within`: bounds, of which those on a single digit narrow the range.
        """
        return of_sum(((self._atom_range(a, within), f) for a, f in index.terms), index.constant)

    def _atom_range(self, atom: Atom, within: tuple[Bound, ...]) -> Range:
        if isinstance(atom, SpaceDigit):
            found: Range = 0, self.extents_of(atom.number) - 1
            for bound in within:
                if bound.index == Index.digit(atom.number):
                    found = intersected(found, (bound.low, bound.high - 1))
            return found

        if isinstance(atom, Folded):
            low, high = self.range(atom.index, within)
            last = atom.extent - 1
            if atom.mode == EDGE:
                return min(max(low, 0), last), max(min(high, last), 0)
            return (low, high) if low >= 0 and high <= last else (0, last)

        def of(operand: Index | int) -> Range:
            low, high = self.range(operand, within) if isinstance(operand, Index) else (operand, operand)
            return max(low, 0), max(high, 0)  # no index is negative where it is divided

        return OPERATIONS[atom.op].range(of, (atom.index, atom.by))

    def holds(self, bound: Bound) -> bool | None:
        """Return whether a bound always holds or never does, None if that depends on the digits."""
        least, greatest = self.range(bound.index)
        if max(bound.low, least) > min(bound.high - 1, greatest):
            return False
        return True if bound.low <= least and greatest < bound.high else None

    def divide(self, index: Index, by: int) -> tuple[Index, Index]:
        """Return quotient and remainder of `index`, which is not negative where it is used.

        >>> space = Space()
        >>> outer, inner = space.divide(space.axis(12), 4)  # a digit of 12 becomes one of 3 and one of 4
        """
        return self._part(index, by, FLOOR), self._part(index, by, MOD)

    def folded(self, index: Index, extent: int, mode: str) -> Index:
        """Return the index of the element that stands at `index` around an axis of an extent, at least 1.

        `REFLECT`: the index lies within 1 - extent and 2 extent - 2.
        """
        index = self.resolved(index)
        inside = self.holds(Bound(index, 0, extent))
        return index if inside else Index(((Folded(index, extent, mode), 1),))

    def _part(self, index: Index, by: int, op: str) -> Index:
        index = self.resolved(index)
        while True:
            whole, rest = whole_multiples(index.terms, by)
            low = Index(tuple(rest), index.constant % by)
            if is_reduced(self.range(low), (by, by)):
                return low if op == MOD else _index(whole, index.constant // by)
            cut = next((c for a, f in low.terms if (c := self._cut(a, f, by)) is not None), None)
            if cut is None:
                return Index(((Divided(index, by, op), 1),))
            index = self.resolved(index)

    def _cut(self, atom: Atom, factor: int, by: int) -> int | None:
        """Split a digit so that factor * (its outer part) is a multiple of `by`; None if that is impossible."""
        if not isinstance(atom, SpaceDigit) or factor <= 0 or by % factor:
            return None
        inner, extent = by // factor, self.extents[atom.number]
        if extent <= inner or extent % inner:
            return None
        number = len(self.extents) + len(self.cuts)
        self.cuts[atom.number] = (number, number + 1)
        parts = {number: extent // inner, number + 1: inner}
        items = [p for n, e in self.extents.items() for p in (parts.items() if n == atom.number else [(n, e)])]
        # Digit indices are never reused: `extents` and `cuts` together count them.
        self.extents = dict(items)
        return atom.number


def linear(coordinates: tuple[Index, ...], shape: Shape) -> Index:
    """Return the row-major offset of an element of a dense tensor."""
    total = Index()
    for coordinate, extent in zip(coordinates, shape, strict=True):
        total = total * extent + coordinate
    return total


def reshaped(space: Space, coordinates: tuple[Index, ...], shape: Shape, to: Shape) -> tuple[Index, ...]:
    """Return the coordinates in shape `to` of the element at `coordinates` in `shape`, with the same row-major data.

    Only dimensions that correspond are merged and split: (6, 4) as (2, 3, 4) does not touch the 4.
    """
    found: list[Index] = []
    source = [(c, n) for c, n in zip(coordinates, shape, strict=True) if n != 1]
    target = list(to)
    while target:
        group = [target.pop()]
        index, size, stride = Index(), 1, 1
        while size != math.prod(group):
            if size < math.prod(group):
                coordinate, extent = source.pop()
                index, size, stride = index + coordinate * stride, size * extent, stride * extent
            else:
                group.append(target.pop())
        for number, extent in enumerate(group):
            last = number == len(group) - 1
            index, own = (Index(), index) if last else space.divide(index, extent)
            found.append(own)
    return tuple(reversed(found))


def scaled(bound: Bound, digit: int, extent: int) -> Bound:
    """Return the same bound on index * extent + digit: low <= i < high is low e <= i e + d < high e, for 0 <= d < e."""
    return Bound(bound.index * extent + Index.digit(digit), bound.low * extent, bound.high * extent)


@dataclass(frozen=True)
class Dimensions:
    """The digits of a space, with adjacent ones merged where everything traverses both alike."""

    extents: Shape
    """Outermost first, at least one."""
    number: dict[int, int]
    """The dimension of each relevant digit; the outer digits of a dimension are omitted."""
    inner: dict[int, tuple[tuple[int, int], ...]]
    """For a digit merged with digits inside it: these, with their extents, outermost first."""

    def of(self, index: Index) -> Index:
        """Return `index` in terms of dimensions."""
        terms: list[tuple[Atom, int]] = []
        for atom, factor in index.terms:
            if isinstance(atom, Divided):
                terms.append((Divided(self.of(atom.index), atom.by, atom.op), factor))
            elif isinstance(atom, Folded):
                terms.append((Folded(self.of(atom.index), atom.extent, atom.mode), factor))
            elif atom.number in self.number:
                terms.append((SpaceDigit(self.number[atom.number]), factor))
        return _index(terms, index.constant)

    def bound(self, bound: Bound) -> Bound:
        """Return `bound` in terms of dimensions."""
        for outer, inside in self.inner.items():
            for number, extent in inside:
                if bound.index.factor(outer) and not bound.index.factor(number):
                    bound = scaled(bound, number, extent)
        return Bound(self.of(bound.index), bound.low, bound.high)


def merged(space: Space, indices: Iterable[Index], bounds: Iterable[Bound]) -> Dimensions:
    """Return the fewest dimensions in which all `indices` and `bounds` can be expressed.

    A bound on the outer one of two digits is equivalent to one on both: it does not prevent merging.
    """
    all_of = [i for index in indices for i in index.inner()]
    limits = list({id(b): b for b in bounds}.values())  # the reads at the edges of an image share their bounds
    groups: list[list[int]] = []
    for number, extent in space.extents.items():
        last = groups[-1][-1] if groups else None
        fitted = None if last is None else [_fitted(b, last, number, extent) for b in limits]
        if (
            last is not None
            and fitted is not None
            and None not in fitted
            and all(i.factor(last) == i.factor(number) * extent for i in all_of)
        ):
            limits = [b for b in fitted if b is not None]
            groups[-1].append(number)
        else:
            groups.append([number])
    if not groups:
        return Dimensions((1,), {}, {})
    extents = tuple(math.prod(space.extents[n] for n in group) for group in groups)
    inner = {
        outer: tuple((n, space.extents[n]) for n in group[position + 1 :])
        for group in groups
        for position, outer in enumerate(group[:-1])
    }
    return Dimensions(extents, {group[-1]: d for d, group in enumerate(groups)}, inner)


def _fitted(bound: Bound, outer: int, inner: int, extent: int) -> Bound | None:
    """Return the bound in terms of the merged digit; None if it is not expressible."""
    parts = list(bound.index.inner())
    if all(i.factor(outer) == i.factor(inner) * extent for i in parts):
        return bound
    if bound.index.factor(outer) == 1 and len(parts) == 1 and not bound.index.factor(inner):
        return scaled(bound, inner, extent)
    return None
