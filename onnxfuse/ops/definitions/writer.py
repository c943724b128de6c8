"""What a definition is written with: the node that it is of, and the nodes that take its place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from onnx import TensorProto, helper

from onnxfuse.symbolic.integer import Int

Shape = Sequence[int | Int | None] | None
"""Extents of a value, None where one is open; None if the rank is unknown."""

LARGEST: Mapping[int, float] = {TensorProto.FLOAT16: 65504.0, TensorProto.BFLOAT16: 3.3895313892515355e38}
"""The largest numbers of the narrow types."""
HALVES = tuple(LARGEST)


class Writer(Protocol):
    """Writes nodes into a graph."""

    @property
    def opset(self) -> int:
        """Version of the default operator set."""
        ...

    def add(self, op: str, *inputs: str, domain: str = "", **operands: Any) -> str:
        """Add a node and return its output. `operands` are attributes, or inputs by their names."""
        ...

    def several(self, count: int, op: str, *inputs: str, domain: str = "", **operands: Any) -> list[str]:
        """Add a node of several outputs and return them."""
        ...

    def constant(self, array: np.ndarray | Sequence[int]) -> str:
        """Add a constant, of integers as int64, and return its name."""
        ...

    def dtype(self, value: str) -> int:
        """Return the element type of a value of the graph, 0 if unknown."""
        ...

    def shape(self, value: str) -> Shape:
        """Return the shape of a value of the graph."""
        ...


@dataclass(frozen=True)
class Defined:
    """A node, and the writer of what it computes."""

    to: Writer
    inputs: Sequence[str]
    wanted: Sequence[bool]
    """Whether each of its outputs is read."""
    attributes: Mapping[str, Any]

    def read(self, position: int) -> str:
        """Return the input at a position, "" if there is none."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def wants(self, position: int) -> bool:
        """Return whether the output at a position is read."""
        return position < len(self.wanted) and self.wanted[position]

    def wants_only(self, *positions: int) -> bool:
        """Return whether no other outputs are read."""
        return not any(wanted for i, wanted in enumerate(self.wanted) if i not in positions)

    def reads_only(self, *positions: int) -> bool:
        """Return whether there are no other inputs."""
        return not any(value for i, value in enumerate(self.inputs) if i not in positions)

    def number(self, attribute: str, default: float = 0.0) -> float:
        """Return a numeric attribute."""
        return float(self.attributes.get(attribute, default))

    def integer(self, attribute: str, default: int = 0) -> int:
        """Return an integer attribute."""
        return int(self.attributes.get(attribute, default))

    def text(self, attribute: str) -> str:
        """Return a text attribute, "" by default."""
        value = self.attributes.get(attribute, "")
        return value.decode() if isinstance(value, bytes) else str(value)

    def rank(self, value: str) -> int | None:
        """Return the number of dimensions of a value."""
        shape = self.to.shape(value) if value else None
        return None if shape is None else len(shape)

    def extent(self, value: str, axis: int) -> int | None:
        """Return a known extent of a value."""
        shape = self.to.shape(value) if value else None
        found = None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]
        return found if isinstance(found, int) else None

    def scalar(self, number: float, dtype: int) -> str:
        """Add a scalar constant, clipped to the range of its type."""
        element = helper.tensor_dtype_to_np_dtype(dtype)
        largest = LARGEST.get(dtype, np.inf)
        return self.to.constant(np.asarray(np.clip(number, -largest, largest), element))

    def length(self, value: str, axis: int) -> str:
        """Add what computes an extent of a value, of shape [1]."""
        shape = self.to.add("Shape", value)
        return self.to.add("Slice", shape, starts=[axis], ends=[axis + 1], axes=[0])


Definition = Callable[[Defined], Sequence[str] | None]
"""Writes nodes that compute what a node computes, and returns their results in the place of its outputs, "" for those
that nobody reads. Returns None for a node that it has no nodes for."""
