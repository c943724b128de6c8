"""The integer values that an input accepts, at the sizes of dimensions that a case fixes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import NodeProto

from onnxfuse import ops
from onnxfuse.shapes.extent_values import at_sizes
from onnxfuse.shapes.types import Dim, ValueType
from onnxfuse.symbolic.integer import Int, IntLike

UNKNOWN_EXTENT = Int.name("")
"""An extent that no size determines."""


def extent_at(extent: IntLike, sizes: Mapping[str, int]) -> int | None:
    """Return the integer for an extent, or for what is computed from extents; None if the sizes do not determine it."""
    value = at_sizes(extent, sizes)
    return value if isinstance(value, int) else None


@dataclass(frozen=True)
class IntegerRange:
    """Integers from `low` to `high`, inclusive."""

    low: IntLike
    high: IntLike
    limited: bool = True
    """Whether the end is that of some value's axis, which rejects larger ones."""

    def at(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return both ends for these dimension sizes; an unknown end falls back to the smallest valid integer."""
        low, high = extent_at(self.low, sizes) or 0, extent_at(self.high, sizes)
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

    @property
    def operator(self) -> ops.Operator | None:
        """The entry of the node's operator."""
        return ops.operator(self.node.op_type, self.node.domain)

    def at(self, name: str) -> int:
        """Return the position of an input. Raises ValueError if the operator's entry has none of this name."""
        if self.operator is None:
            raise ValueError(f"no operator {self.node.domain}:{self.node.op_type}")
        return self.operator.position(name)

    def constant(self, position: int) -> tuple[int, ...]:
        """Return the integers of a constant input; empty for any other."""
        return self.vectors.get(self.node.input[position], ()) if self.has(position) else ()

    def has(self, position: int) -> bool:
        """Return whether the node has that input."""
        return position < len(self.node.input) and bool(self.node.input[position])

    def shape(self, position: int) -> tuple[Dim, ...] | None:
        """Return the shape of an input; None if unknown."""
        type_ = self.types.get(self.node.input[position]) if self.has(position) else None
        return None if type_ is None else type_.shape

    def extent(self, position: int, axis: int) -> IntLike:
        """Return the extent of an axis of an input."""
        shape = self.shape(position)
        found = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        return UNKNOWN_EXTENT if found is None else found

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute of the node."""
        return next((onnx.helper.get_attribute_value(a) for a in self.node.attribute if a.name == name), default)
