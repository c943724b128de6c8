"""Whole numbers in programs: conversions that are sums, and those that are left out."""

import pytest
from onnx import TensorProto

from bench.cases import ops
from onnxfuse.codegen.program.builder import Builder
from onnxfuse.codegen.program.program import Apply, Input
from onnxfuse.codegen.program.whole_numbers import fits, is_whole
from onnxfuse.cuda.templates.memory_bound import schedule
from onnxfuse.ops import scalar

FLOAT, INT8, UINT8 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8


def casts(text: str, types: tuple[int, ...], to: int) -> int:
    """Return how many conversions the program of a body has."""
    program = schedule.program(ops.op(text, types, (to,)))
    return sum(isinstance(v, Apply) and v.op == scalar.cast for v in program.values)


def test_quantized_and_dequantized_at_once_is_not_converted() -> None:
    """But for the zero point, twice."""
    text = "(x, s, z) => (y) { q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }"
    assert casts(text, (FLOAT, FLOAT, INT8), FLOAT) <= 2


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
