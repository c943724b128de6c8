"""Extents that a case knows and a model need not, and the numbers that an input takes where they have their sizes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import NodeProto

from onnxfuse.shapes.types import Dim, ValueType, factors, whole


@dataclass(frozen=True)
class CountedExtent:
    """A sum of extents, products of them, and a number."""

    terms: tuple[tuple[int, tuple[Dim, ...]], ...] = ()
    """Each a number times extents."""
    plus: int = 0

    def __add__(self, other: "CountedExtent | int") -> "CountedExtent":
        more = other if isinstance(other, CountedExtent) else CountedExtent((), other)
        return CountedExtent((*self.terms, *more.terms), self.plus + more.plus)

    def __sub__(self, other: "CountedExtent | int") -> "CountedExtent":
        less = other if isinstance(other, CountedExtent) else CountedExtent((), other)
        return self + CountedExtent(tuple((-n, dims) for n, dims in less.terms), -less.plus)

    def times(self, number: int) -> "CountedExtent":
        """Return it so many times."""
        return CountedExtent(tuple((n * number, dims) for n, dims in self.terms), self.plus * number)

    def at(self, sizes: Mapping[str, int]) -> int | None:
        """Return the number where dimensions have these sizes; None where one of them is not known."""
        total = self.plus
        for number, dims in self.terms:
            known = [_size(d, sizes) for d in dims]
            if None in known:
                return None
            total += number * math.prod(n for n in known if n is not None)
        return total


def _size(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    if dim is None or isinstance(dim, int):
        return dim
    parts = [sizes.get(f, whole(f)) for f in ([dim] if dim in sizes else factors(dim))]
    return None if None in parts else math.prod(n for n in parts if n is not None)


@dataclass(frozen=True)
class Span:
    """Whole numbers from `low` to `high`, both of them valid."""

    low: CountedExtent
    high: CountedExtent

    def at(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return both ends where dimensions have these sizes; what is not known leaves the smallest number."""
        low = self.low.at(sizes) or 0
        high = self.high.at(sizes)
        return low, low if high is None else max(low, high)


Fitted = Callable[[Mapping[str, int], tuple[int, ...]], tuple[int, ...]]
"""Computes the numbers from the sizes of the dimensions and the shape of the input."""


@dataclass(frozen=True)
class InputValues:
    """What an input takes."""

    kind: str
    """`within`: numbers of every span. `each`: a number of the span of its own, the last element that of the last span.
    `axes`: different ones out of `choices`. `parts`: numbers that add up to the last of the first span. `target`: the
    shape of a Reshape. `mask`: zeros and ones. `fitted`: what `fitted` computes."""
    spans: tuple[Span, ...] = ()
    choices: tuple[int, ...] = ()
    real: bool = False
    """Whether what lies between two whole numbers is valid, too."""
    fitted: Fitted | None = None


@dataclass(frozen=True)
class Site:
    """A node that reads the input, and what is known where it stands."""

    node: NodeProto
    position: int
    types: Mapping[str, ValueType]
    numbers: Mapping[str, int]
    """Constants of one whole number."""
    vectors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Constants of a few of them."""

    def constant(self, position: int) -> tuple[int, ...]:
        """Return the whole numbers of an input that is constant; none of another."""
        return self.vectors.get(self.node.input[position], ()) if self.has(position) else ()

    def has(self, position: int) -> bool:
        """Return whether the node has that input."""
        return position < len(self.node.input) and bool(self.node.input[position])

    def shape(self, position: int) -> tuple[Dim, ...] | None:
        """Return the shape of an input, None where it is not known."""
        found = self.types.get(self.node.input[position]) if self.has(position) else None
        return None if found is None else found.shape

    def extent(self, position: int, axis: int) -> CountedExtent:
        """Return the extent of an axis of an input; of one that is not known nothing can be computed."""
        shape = self.shape(position)
        known = shape is not None and -len(shape) <= axis < len(shape)
        return CountedExtent(((1, (shape[axis] if shape is not None and known else None,)),))

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute of the node."""
        return next((onnx.helper.get_attribute_value(a) for a in self.node.attribute if a.name == name), default)
