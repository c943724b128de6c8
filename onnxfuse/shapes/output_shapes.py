"""Shapes and small tensors of integers that a node gives, by its operator's entry, from what is known of its inputs.

What is not known is an extent with a name of its own while a shape function runs, and None before and after.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from onnx import NodeProto

from onnxfuse import ops
from onnxfuse.ops import Operator, Trait
from onnxfuse.ops.inputs import Data
from onnxfuse.ops.shapes.extents import UnknownError, is_known, unknown
from onnxfuse.ops.shapes.node import Dims, Elements
from onnxfuse.shapes.scalar_values import Whole, WholeNode
from onnxfuse.shapes.types import Dim, Shape
from onnxfuse.shapes.value_facts import LIMIT, Ratio, ValueFacts, attribute
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.integer import Int

T = TypeVar("T")

INCONSISTENT = (
    UnsupportedError, IndexError, ValueError, TypeError, OverflowError, ZeroDivisionError, StopIteration
)  # fmt: skip
"""Exceptions for a node with inconsistent inputs: nothing is known of its results. Such a node cannot run; in a dead
branch it need not."""


@dataclass(slots=True)
class KnownNode:
    """A node, and what is known of its inputs: a `ShapeNode`."""

    facts: ValueFacts
    proto: NodeProto
    entry: Operator

    @property
    def opset(self) -> int:
        return self.facts.opset

    @property
    def outputs(self) -> int:
        return len(self.proto.output)

    @property
    def shapes(self) -> Sequence[Dims | None]:
        """Shapes of the inputs, None for an absent one or an unknown rank."""
        return [self._shape(value) for value in self.proto.input]

    def _shape(self, value: str) -> Any:
        numbers = self.facts.numbers.get(value)
        shape = self.facts.shapes.get(value) if numbers is None else numbers.shape
        return tuple(map(_named, shape)) if shape is not None and None in shape else shape

    def shape(self, position: int) -> Dims:
        """Return the shape of an input."""
        dims: Dims | None = self._shape(self._input(position))
        if dims is None:
            raise UnknownError(f"the shape of input {position}")
        return dims

    def _input(self, position: int) -> str:
        """Return the name of an input, which must be there."""
        if not self.is_present(position):
            raise UnsupportedError(f"{self.entry} without its input {position}")
        name: str = self.proto.input[position]
        return name

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return attribute(self.proto, name, default)

    def is_present(self, position: int) -> bool:
        """Return whether the node has an input."""
        return len(self.proto.input) > position and self.proto.input[position] != ""

    def has(self, name: str) -> bool:
        """Return whether the node has an input, or the attribute that became that input."""
        return self.attribute(name) is not None or self.is_present(self.entry.position(name))

    def integers(self, name: str, count: int | None = None) -> Dims:
        """Return the elements of an input of integers, flattened, or the attribute that became that input."""
        attribute = self.attribute(name)
        if attribute is not None:
            return tuple(np.ravel(attribute).tolist())
        position = self.entry.position(name)
        elements = self.facts.numbers.get(self._input(position))
        if elements is not None:
            return tuple(map(_named, elements.reshape(-1).tolist()))
        length = self.shapes[position] if count is None else (count,)
        if length is None or len(length) != 1 or not isinstance(length[0], int) or length[0] > LIMIT:
            raise UnknownError(name)
        return tuple(unknown() for _ in range(length[0]))

    def axes(self, name: str) -> tuple[int, ...]:
        """Return the elements of an input of integers; raises `UnknownError` unless all of them are constants."""
        numbers = self.integers(name)
        whole = [n for n in numbers if isinstance(n, int)]
        if len(whole) < len(numbers):
            raise UnknownError(name)
        return tuple(whole)

    def reals(self, name: str) -> Sequence[float]:
        """Return the elements of a constant input, or the attribute that became that input."""
        value = self.attribute(name)
        if value is None:
            value = self.facts.constants.get(self._input(self.entry.position(name)))
        if value is None:
            raise UnknownError(name)
        return [float(x) for x in np.ravel(value)]

    def elements(self, position: int) -> Elements:
        """Return the elements of an input."""
        numbers = self.facts.numbers.get(self._input(position))
        if numbers is None:
            raise UnknownError(f"the elements of input {position}")
        return numbers


Results = tuple[Sequence[Shape], Whole | None]
"""A node's output shapes, empty where nothing is known, and an only output's few integers."""


def results_of(facts: ValueFacts, node: NodeProto) -> Results:
    """Return a node's results; equal nodes with equal inputs, as a model's layers have, are computed once."""
    entry = ops.operator(node.op_type, node.domain)
    if entry is None or entry.shape is None:
        return [], None
    request = KnownNode(facts, node, entry)
    if Trait.HAS_BODY in entry.traits:
        return _results(request, entry.shape)
    read = [facts.key(v, is_data=isinstance(entry.role(i), Data)) for i, v in enumerate(node.input)]
    key = entry, len(node.output), *read, *(a.SerializeToString() for a in node.attribute)
    if key not in facts.results:
        facts.results[key] = _results(request, entry.shape)
    results: Results = facts.results[key]
    return results


def _results(request: KnownNode, shape_of: Callable[[KnownNode], Any]) -> Results:
    shapes = [tuple(map(_unnamed, shape)) for shape in _answer(shape_of, request) or ()]
    shape = _few(shapes)
    reads_shape = Trait.READS_SHAPE in request.entry.traits
    if shape is None or not (reads_shape or any(request.facts.numbers.get(v) is not None for v in request.proto.input)):
        return shapes, None
    return shapes, _answer(lambda request: _whole(request, shape), request)


def _few(shapes: Sequence[Shape]) -> list[int] | None:
    """Return the shape of an only output of few elements."""
    (only, *more) = shapes or (None,)
    whole = [d for d in only or () if isinstance(d, int)]
    return whole if only is not None and not more and len(whole) == len(only) and math.prod(whole) <= LIMIT else None


def _answer(function: Callable[[KnownNode], T], node: KnownNode) -> T | None:
    """Return the result of an entry's function for a node; None if it is unknown or the node is inconsistent."""
    try:
        return function(node)
    except (UnknownError, *INCONSISTENT):
        return None


def _named(extent: Dim) -> Any:
    return unknown() if extent is None else extent


def _unnamed(extent: object) -> Any:
    """Return an extent or an element, None for one that is not known, or is no integer in a file with wrong types."""
    return extent if isinstance(extent, int | Int | Ratio) and is_known(extent) else None


_UNNAMED = np.frompyfunc(_unnamed, 1, 1)


def _whole(node: KnownNode, shape: list[int]) -> Whole:
    """Return the elements of a node's output of this shape."""
    result = _computed(node)
    return Whole(np.asarray(_UNNAMED(result.array), object).reshape(shape), result.floats)


def _computed(node: KnownNode) -> Whole:
    entry, reals = node.entry, [v in node.facts.reals for v in node.proto.input]
    if entry.value is not None:
        return Whole(entry.value(node), any(reals) and Trait.READS_SHAPE not in entry.traits)
    request = WholeNode(node, reals)
    if entry.meaning is not None:
        result = entry.meaning(request)
    elif entry.reduced is not None:
        result = entry.reduced(request, request.over)
    else:
        raise UnknownError(f"what {entry} computes")
    assert isinstance(result, Whole)
    return result
