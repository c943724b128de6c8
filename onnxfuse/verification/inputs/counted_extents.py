"""Symbolic extents whose sizes a case fixes, and the integer values that an input accepts at those sizes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import NodeProto

from onnxfuse.shapes.types import Dim, ValueType, factors, whole


@dataclass(frozen=True)
class CountedExtent:
    """A sum of products of extents, and a constant."""

    terms: tuple[tuple[int, tuple[Dim, ...]], ...] = ()
    """Each a coefficient and its extents."""
    plus: int = 0

    def __add__(self, other: "CountedExtent | int") -> "CountedExtent":
        more = other if isinstance(other, CountedExtent) else CountedExtent((), other)
        return CountedExtent((*self.terms, *more.terms), self.plus + more.plus)

    def __sub__(self, other: "CountedExtent | int") -> "CountedExtent":
        less = other if isinstance(other, CountedExtent) else CountedExtent((), other)
        return self + CountedExtent(tuple((-n, dims) for n, dims in less.terms), -less.plus)

    def times(self, number: int) -> "CountedExtent":
        """Return this multiplied by an integer."""
        return CountedExtent(tuple((n * number, dims) for n, dims in self.terms), self.plus * number)

    def at(self, sizes: Mapping[str, int]) -> int | None:
        """Return the value for these dimension sizes; None if one of them is unknown."""
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
class IntegerRange:
    """Integers from `low` to `high`, inclusive."""

    low: CountedExtent
    high: CountedExtent

    def at(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return both ends for these dimension sizes; an unknown end falls back to the smallest valid integer."""
        low = self.low.at(sizes) or 0
        high = self.high.at(sizes)
        return low, low if high is None else max(low, high)


Fitted = Callable[[Mapping[str, int], tuple[int, ...]], tuple[int, ...]]
"""Computes the values from the dimension sizes and the input's shape."""


@dataclass(frozen=True)
class InputValues:
    """The values that an input accepts."""

    kind: str
    """`within`: integers in every span. `each`: a span per element, aligned at the last element. `axes`: distinct
    integers out of `choices`. `parts`: integers that sum to the end of the first span. `target`: a Reshape target.
    `mask`: zeros and ones. `fitted`: computed by `fitted`."""
    spans: tuple[IntegerRange, ...] = ()
    choices: tuple[int, ...] = ()
    real: bool = False
    """Whether values between two integers are valid, too."""
    fitted: Fitted | None = None


@dataclass(frozen=True)
class Site:
    """A node that reads the input, with what is known at that node."""

    node: NodeProto
    position: int
    types: Mapping[str, ValueType]
    numbers: Mapping[str, int]
    """Scalar integer constants."""
    vectors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Short integer vector constants."""

    def constant(self, position: int) -> tuple[int, ...]:
        """Return the integers of a constant input; empty for any other."""
        return self.vectors.get(self.node.input[position], ()) if self.has(position) else ()

    def has(self, position: int) -> bool:
        """Return whether the node has that input."""
        return position < len(self.node.input) and bool(self.node.input[position])

    def shape(self, position: int) -> tuple[Dim, ...] | None:
        """Return the shape of an input; None if unknown."""
        found = self.types.get(self.node.input[position]) if self.has(position) else None
        return None if found is None else found.shape

    def extent(self, position: int, axis: int) -> CountedExtent:
        """Return the extent of an axis of an input; nothing can be computed from an unknown one."""
        shape = self.shape(position)
        known = shape is not None and -len(shape) <= axis < len(shape)
        return CountedExtent(((1, (shape[axis] if shape is not None and known else None,)),))

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute of the node."""
        return next((onnx.helper.get_attribute_value(a) for a in self.node.attribute if a.name == name), default)
