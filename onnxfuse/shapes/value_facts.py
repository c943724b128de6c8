"""Facts about values, collected in one pass over a graph: shapes, integer tensors, small constants."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, numpy_helper

from onnxfuse.shapes.extent_arithmetic import Shape

Elements = npt.NDArray[Any]
"""The elements of an integer tensor, as `Dim`: numbers and names of extents, None for one that is not known."""

Numbers = Elements | None
"""None where nothing is known of the elements."""

LIMIT = 64
"""Extents of a shape, and elements of a tensor that is followed: a few shapes behind one another."""

_FOLLOWED = frozenset({onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.FLOAT})
"""Types of the constants that say shapes; floats are the scales of a Resize."""


@dataclass
class ValueFacts:
    """Of each value by its name."""

    opset: int
    shapes: dict[str, Shape]
    numbers: dict[str, Numbers] = field(default_factory=dict)
    constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def remember(self, name: str, tensor: onnx.TensorProto) -> None:
        """Keep the shape of a constant, and its elements where there are few."""
        size = int(np.prod(tensor.dims))
        external = tensor.data_location == onnx.TensorProto.EXTERNAL  # its numbers were left in their file
        if not external and tensor.data_type in _FOLLOWED and size <= LIMIT:
            array = numpy_helper.to_array(tensor)
            self.constants[name] = array
            if array.dtype.kind == "i":
                self.numbers[name] = array.astype(object)
        self.shapes[name] = tuple(tensor.dims)

    def hold(self, node: NodeProto) -> None:
        """Keep what a Constant holds."""
        for written in node.attribute:
            if written.name == "value":
                self.remember(node.output[0], written.t)
            elif written.name in ("value_int", "value_ints"):
                array = np.asarray(onnx.helper.get_attribute_value(written), np.int64)
                self.remember(node.output[0], numpy_helper.from_array(array))

    def vector(self, node: NodeProto, index: int) -> Shape:
        """Return the integers that a node reads, one after another; None where nothing is known of them."""
        found = self.numbers.get(node.input[index]) if len(node.input) > index else None
        return None if found is None else tuple(found.reshape(-1).tolist())

    def ints(self, node: NodeProto, index: int) -> list[int] | None:
        """Return the integers that a node reads where all are numbers."""
        found = self.vector(node, index)
        whole = [d for d in found or () if isinstance(d, int)]
        return whole if found is not None and len(whole) == len(found) else None

    def axes(self, node: NodeProto, index: int, rank: int) -> list[int] | None:
        """Return the axes, from 0, that an attribute says, or an input in later operator sets; None where none does."""
        written = attribute(node, "axes")
        axes = list(written) if isinstance(written, list) else self.ints(node, index)
        return None if axes is None else [a % rank for a in axes]


def attribute(node: NodeProto, name: str, default: object = None) -> Any:
    """Return the value of a node's attribute."""
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def integer(node: NodeProto, name: str, default: int) -> int:
    """Return the value of an attribute that is an integer. Raises TypeError, ValueError for what is none."""
    return int(attribute(node, name, default))
