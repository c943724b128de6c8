"""Facts about values, collected in one pass over a graph: shapes, integer tensors, small constants."""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, numpy_helper

from onnxfuse.ops.shapes.node import Elements
from onnxfuse.shapes.types import Shape
from onnxfuse.symbolic.integer import IntLike


@dataclass(frozen=True)
class Ratio:
    """A quotient that is no integer, until it is rounded."""

    above: IntLike
    below: int
    """At least 1."""


Numbers = Elements | None
"""None if the elements are unknown."""

EXACT = 2**24
"""Magnitude up to which float32 has every integer."""

LIMIT = 64
"""Maximum rank of a shape, and elements of a propagated tensor: a few concatenated shapes."""

_FOLLOWED = frozenset({onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.FLOAT})
"""Element types of constants that describe shapes; floats are the scales of a Resize."""


@dataclass
class ValueFacts:
    """Facts about values, by name."""

    opset: int
    shapes: dict[str, Shape]
    numbers: dict[str, Numbers] = field(default_factory=dict)
    constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    reals: set[str] = field(default_factory=set)
    """Values of a floating-point type with known elements: their quotients are not rounded."""
    results: dict[Hashable, Any] = field(default_factory=dict)
    """What nodes give, by what they are and by the keys of their inputs."""

    def key(self, name: str, *, is_data: bool = False) -> Hashable:
        """Return all that is known of a value, as a key of `results`.

        No shape follows from the elements of data, unless these are whole: biases of one shape have one key.
        """
        numbers = self.numbers.get(name)
        array = None if is_data and numbers is None else self.constants.get(name)
        if numbers is None and array is None:
            return self.shapes.get(name) if name else ""
        elements = None if numbers is None else (*numbers.shape, None, *numbers.reshape(-1))
        stored = None if array is None else (array.dtype.str, array.shape, array.tobytes())
        return self.shapes.get(name), elements, stored, name in self.reals

    def remember(self, name: str, tensor: onnx.TensorProto) -> None:
        """Record the shape of a constant, and its elements if there are few."""
        size = math.prod(tensor.dims)
        external = tensor.data_location == onnx.TensorProto.EXTERNAL  # its data was not loaded
        if not external and tensor.data_type in _FOLLOWED and size <= LIMIT:
            array = numpy_helper.to_array(tensor)
            self.constants[name] = array
            if array.dtype.kind == "i":
                self.numbers[name] = array.astype(object)
            elif (array == np.floor(array)).all() and (np.abs(array) < EXACT).all():
                self.numbers[name] = array.astype(np.int64).astype(object)
                self.reals.add(name)
        self.shapes[name] = tuple(tensor.dims)

    def hold(self, node: NodeProto) -> None:
        """Record the value of a Constant node."""
        for written in node.attribute:
            if written.name == "value":
                self.remember(node.output[0], written.t)
            elif written.name in ("value_int", "value_ints"):
                array = np.asarray(onnx.helper.get_attribute_value(written), np.int64)
                self.remember(node.output[0], numpy_helper.from_array(array))


def attribute(node: NodeProto, name: str, default: object = None) -> Any:
    """Return the value of a node's attribute."""
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
