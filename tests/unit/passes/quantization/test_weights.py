"""Weights that no 8-bit kernel takes are dequantized at optimize time, beside quantized activations."""

from functools import partial

import pytest

from tests.support import small
from tests.support.small import assert_same_numbers, ops, optimize

parse = partial(small.parse, opset=21)
"""Of the first operator set that onnx's reference has DequantizeLinear of."""

WEIGHTS = {
    "a zero point for each filter": "float[2] s = {0.02,0.03}, uint8[2] z = {3,130}",
    "one zero point": "float s = {0.02}, uint8 z = {130}",
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_filters(name: str) -> None:
    axis = "<axis = 0>" if "[2]" in WEIGHTS[name] else ""
    model = parse(
        f"""g (uint8[N,2,4,4] x) => (float[N,2,4,4] y)
<float t = {{0.02}}, uint8[2,1,1,1] w = {{100,150}}, {WEIGHTS[name]}> {{
  a = DequantizeLinear (x, t)
  k = DequantizeLinear {axis} (w, s, z)
  y = Conv <group = 2> (a, k)
}}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made) == ["DequantizeLinear", "Conv"]
    assert_same_numbers(model, made)


def test_scales_of_blocks() -> None:
    """The last block of an axis may be short."""
    model = parse(
        """g (uint8[N,3] x) => (float[N,2] y)
<float t = {0.02}, int8[3,2] w = {1,2,-3,4,5,-6}, float[2,2] s = {0.5,1,2,4}> {
  a = DequantizeLinear (x, t)
  k = DequantizeLinear <axis = 0, block_size = 2> (w, s)
  y = MatMul (a, k)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made) == ["DequantizeLinear", "MatMul"]
    assert_same_numbers(model, made)


@pytest.mark.parametrize("shared", ["v = Neg (k)", "p = MatMul (f, k)\n  v = Neg (p)"])
def test_weights_of_floating_point_activations_stay_small(shared: str) -> None:
    """Also where quantized activations read them, too."""
    model = parse(
        f"""g (uint8[N,3] x, float[N,3] f) => (float[N,2] y, float[M,2] v)
<float t = {{0.02}}, int8[3,2] w = {{1,2,-3,4,5,-6}}, float s = {{0.5}}> {{
  a = DequantizeLinear (x, t)
  k = DequantizeLinear (w, s)
  y = MatMul (a, k)
  {shared}
}}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made).count("DequantizeLinear") == 2
    assert_same_numbers(model, made)


def test_numbers_have_the_type_of_the_result() -> None:
    model = small.parse(
        """<ir_version: 11, opset_import: ["" : 23]>
g (uint8[N,2,4,4] x) => (float16[N,2,4,4] y) <float t = {0.02}, int8[2,1,1,1] w = {100,-50}, float s = {0.02}> {
  a = DequantizeLinear <output_dtype = 10> (x, t)
  k = DequantizeLinear <output_dtype = 10> (w, s)
  y = Conv <group = 2> (a, k)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert [t.data_type for t in made.graph.initializer if list(t.dims)] == [10]
    assert_same_numbers(model, made)
