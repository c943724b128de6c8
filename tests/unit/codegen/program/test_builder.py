"""Integers stay integers, and their sums are whole."""

import pytest
from onnx import TensorProto

from onnxfuse.codegen.program.builder import Builder
from onnxfuse.codegen.program.program import Input
from onnxfuse.codegen.program.whole_numbers import fits, is_whole
from onnxfuse.ops import scalar

FLOAT, INT8, UINT8 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8


@pytest.mark.parametrize(
    ("low", "high", "rounded", "left_out"),
    [(0, 255, True, True), (0, 255, False, False), (-1, 255, True, False), (0, 256, True, False)],
)
def test_what_an_integer_holds_is_not_converted_there_and_back(
    low: float, high: float, rounded: bool, left_out: bool
) -> None:
    """Fractions and numbers beyond the type are: that changes them."""
    x = Builder().term(Input(0, FLOAT))
    number = scalar.clip(scalar.floor(x) if rounded else x, float(low), float(high))
    back = number.cast(UINT8).cast(FLOAT)
    assert (back == number) == left_out
    assert number.cast(UINT8).cast(TensorProto.FLOAT16) != number


def test_sums_of_whole_numbers_are_whole() -> None:
    """A chain of them takes no longer for each link."""
    builder = Builder()
    x = builder.term(Input(0, FLOAT))
    y = scalar.floor(x)
    for _ in range(60):
        y = y + y
    assert is_whole(builder.values, y.index)
    assert not is_whole(builder.values, (y + x).index)
    assert not fits(builder.values, y.index, INT8)
    assert fits(builder.values, scalar.clip(y, -128.0, 127.0).index, INT8)
    assert not fits(builder.values, scalar.clip(y, -128.0, 127.0).index, UINT8)
