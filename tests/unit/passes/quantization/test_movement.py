"""What moves or chooses elements does so with 8 bits."""

from functools import partial

import numpy as np
import pytest

from tests.support import small
from tests.support.small import assert_same_numbers, ops, optimize, run, signed_inputs

parse = partial(small.parse, opset=21)
"""Of the first operator set that onnx's reference has DequantizeLinear of."""

MOVES = {
    "Transpose <perm = [0,2,1]> (a)": "float[N,4,3] y",
    "Reshape (a, shape)": "float[M] y",
    "Slice (a, one, two, one)": "float[N,1,4] y",
    "Gather <axis = 1> (a, one)": "float[N,1,4] y",
}


@pytest.mark.parametrize("move", MOVES)
def test_moves(move: str) -> None:
    model = parse(
        f"""g (uint8[N,3,4] x) => ({MOVES[move]})
<float s = {{0.5}}, uint8 z = {{3}}, int64[1] shape = {{-1}}, int64[1] one = {{1}}, int64[1] two = {{2}}> {{
  a = DequantizeLinear (x, s, z)
  y = {move}
}}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made)[-1] == "DequantizeLinear"
    assert len(ops(made)) == 2
    assert_same_numbers(model, made)


@pytest.mark.parametrize(("scale", "behind"), [("0.5", True), ("-0.5", False)])
def test_the_largest_number_is_the_largest_integer_of_a_positive_scale(scale: str, behind: bool) -> None:
    model = parse(
        f"""g (uint8[N,2,4,4] x) => (float[N,2,2,2] y) <float s = {{{scale}}}, uint8 z = {{3}}> {{
  a = DequantizeLinear (x, s, z)
  y = MaxPool <kernel_shape = [2,2], strides = [2,2]> (a)
}}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made) == (["MaxPool", "DequantizeLinear"] if behind else ["DequantizeLinear", "MaxPool"])
    assert_same_numbers(model, made)


def test_scales_of_a_transposed_weight_lie_along_the_transposed_axis() -> None:
    model = parse(
        """g (float[N,2] x) => (float[N,3] y) <int8[3,2] w = {1,2,3,4,5,6}, float[3] s = {0.5,1,2}> {
  b = DequantizeLinear <axis = 0> (w, s)
  t = Transpose (b)
  y = MatMul (x, t)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made) == ["DequantizeLinear", "MatMul"]
    assert made.graph.node[0].attribute[0].i == 1
    assert_same_numbers(model, made)


def test_values_quantized_once_more_alike_are_the_same() -> None:
    model = parse(
        """g (uint8[N,4] x) => (uint8[N,4] y, uint8[N,4] w) <float s = {0.5}, float t = {0.25}, uint8 z = {3}> {
  a = DequantizeLinear (x, s, z)
  p = QuantizeLinear (a, s, z)
  y = Identity (p)
  w = QuantizeLinear (a, t, z)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made).count("QuantizeLinear") == 1
    assert_same_numbers(model, made)


@pytest.mark.parametrize(
    "text",
    [
        """g (int8[2,4] x) => (float[4,2] y) <float[2,2] s = {0.5,1,2,4}> {
  a = DequantizeLinear <axis = 1, block_size = 2> (x, s)
  y = Transpose <perm = [1,0]> (a)
}""",
        """g (uint8[N,4] x) => (float[N,4] y) <float s = {0.5}> {
  a = DequantizeLinear (x, s)
  o = Optional (a)
  y = OptionalGetElement (o)
}""",
    ],
    ids=["scales of blocks", "no tensor"],
)
def test_what_is_not_moved(text: str) -> None:
    model = parse(text)
    made, _ = optimize(model, "softmax")
    assert ops(made)[0] == "DequantizeLinear"
    inputs = signed_inputs(model)
    np.testing.assert_array_equal(run(made, inputs), run(model, inputs))
