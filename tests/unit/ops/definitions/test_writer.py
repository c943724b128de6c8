"""A node that is defined: its inputs, outputs and attributes, and what is known of values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.ops.definitions.writer import LARGEST, Defined, Shape
from onnxfuse.symbolic.integer import Int


@dataclass
class Written:
    """A writer that remembers what was written."""

    shapes: Mapping[str, Shape]
    opset: int = 17
    nodes: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, op: str, *inputs: str, domain: str = "", **operands: Any) -> str:
        """Return a new name."""
        self.nodes.append((op, *inputs, operands))
        return f"{domain}v{len(self.nodes)}"

    def several(self, count: int, op: str, *inputs: str, domain: str = "", **operands: Any) -> list[str]:
        """Return new names."""
        return [self.add(op, *inputs, domain=domain, **operands)] * count

    def constant(self, array: np.ndarray | Sequence[int]) -> str:
        """Return a new name."""
        return self.add("Constant", value=array)

    def dtype(self, value: str) -> int:
        """Return float32."""
        return TensorProto.FLOAT * bool(value)

    def shape(self, value: str) -> Shape:
        """Return the shape of a value."""
        return self.shapes.get(value)


def node(*inputs: str, wanted: Sequence[bool] = (True,), **attributes: Any) -> Defined:
    """Return a node of these inputs."""
    return Defined(Written({"x": (Int.name("N"), None, 4)}), inputs, wanted, attributes)


def test_inputs_and_outputs_that_are_not_there() -> None:
    """Behind the last they are like those without a name."""
    one = node("x", "", "b", wanted=(True, False, True))
    assert [one.read(i) for i in range(4)] == ["x", "", "b", ""]
    assert [one.wants(i) for i in range(4)] == [True, False, True, False]
    assert [one.wants_only(*at) for at in ((0, 2), (0, 1, 2), (0,), (2,))] == [True, True, False, False]
    assert [one.reads_only(*at) for at in ((0, 2), (0, 1), (2,))] == [True, False, False]


def test_attributes_have_defaults() -> None:
    """Numbers, integers, text in bytes or not."""
    one = node("x", alpha=2, axis=1.0, mode=b"sigmoid", other="silu")
    assert [one.number("alpha"), one.number("beta"), one.number("beta", 3.5)] == [2.0, 0.0, 3.5]
    assert [one.integer("axis"), one.integer("keep"), one.integer("keep", 2)] == [1, 0, 2]
    assert [one.text("mode"), one.text("other"), one.text("none")] == ["sigmoid", "silu", ""]


def test_only_known_extents_are_told() -> None:
    """Neither a name nor an axis that is not there."""
    one = node("x")
    assert [one.rank(v) for v in ("x", "y", "")] == [3, None, None]
    assert [one.extent("x", axis) for axis in range(-4, 4)] == [None, None, None, 4, None, None, 4, None]
    assert one.extent("", 0) is one.extent("y", 0) is None


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT])
def test_scalars_are_clipped_to_their_type(dtype: int) -> None:
    """The finite range of a narrow one."""
    one = node("x")
    assert isinstance(one.to, Written)
    for number in (3.4e38, -3.4e38, 0.5):
        one.scalar(number, dtype)
    values = [operands["value"] for _, operands in one.to.nodes]
    largest = LARGEST.get(dtype, float(np.float32(3.4e38)))
    assert [float(v) for v in values] == [largest, -largest, 0.5]
    assert {v.shape for v in values} == {()}


def test_a_length_is_one_element_of_the_shape() -> None:
    """Of an axis, as a vector."""
    one = node("x")
    assert isinstance(one.to, Written)
    assert one.length("x", 2) == "v2"
    assert one.to.nodes == [("Shape", "x", {}), ("Slice", "v1", {"starts": [2], "ends": [3], "axes": [0]})]
