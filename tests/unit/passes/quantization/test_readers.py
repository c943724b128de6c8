"""Each kernel dequantizes what it reads; weights are dequantized once."""

from functools import partial

import numpy as np
import pytest
from onnx import numpy_helper

from tests.support import small
from tests.support.small import assert_same_numbers, ops, optimize

parse = partial(small.parse, opset=21)
"""Of the first operator set that onnx's reference has DequantizeLinear of."""


def test_each_reader_of_activations() -> None:
    model = parse(
        """g (uint8[N,4] x) => (float[N,4] y, float[N,1] z) <float s = {0.5}> {
  a = DequantizeLinear (x, s)
  y = Softmax (a)
  axes = Constant <value_ints = [1]> ()
  z = ReduceSum (a, axes)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert [n.input[0] for n in made.graph.node if n.op_type == "DequantizeLinear"] in (["x"], ["x", "x"])
    assert all("a" not in n.output for n in made.graph.node)
    assert_same_numbers(model, made)


@pytest.mark.parametrize("name", ["weights", "activations with scales of channels"])
def test_once_for_all(name: str) -> None:
    data, scales = ("w", "float s = {0.5}") if name == "weights" else ("x", "float[2] s = {0.5,1}")
    model = parse(
        f"""g (int8[2,2] x, float[2,2] f) => (float[2,2] y) <int8[2,2] w = {{1,2,-3,4}}, {scales}> {{
  k = DequantizeLinear <axis = 0> ({data}, s)
  p = MatMul (f, k)
  y = MatMul (p, k)
}}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made) == ["DequantizeLinear", "MatMul", "MatMul"]
    assert_same_numbers(model, made)


def test_products_share_what_is_rounded_to_float8() -> None:
    """Its kernel writes the numbers that products read: they stay side by side."""
    model = parse(
        """g (float[N,16] x, float[16] scale) => (float[N,16] y, float[N,16] z)
<float s = {0.05}, float8e4m3fn zero = {0}> {
  n = LayerNormalization (x, scale)
  q = QuantizeLinear (n, s, zero)
  d = DequantizeLinear (q, s, zero)
  y = MatMul (d, v)
  z = MatMul (d, w)
}"""
    )
    rng = np.random.default_rng(0)
    for name in "vw":
        array = rng.standard_normal((16, 16)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    made, _ = optimize(model)
    assert ops(made) == [
        "{LayerNormalization QuantizeLinear DequantizeLinear}", "{Transpose MatMul Transpose MatMul}",
    ]  # fmt: skip
