"""Elementwise work behind a view of a convolution's image stands before the view, and computes the same."""

import numpy as np
import pytest
from onnx import numpy_helper

from onnxfuse.graph.graph import Graph
from onnxfuse.passes.views.elementwise_before_view import elementwise_before_view
from onnxfuse.shapes.inference import infer
from tests.support.small import assert_same_numbers, halved, ops, optimize, parse

TOKENS = """g (float[N,8,H,W] x, float[8,1,3,3] w, float[8,4] p) => (float[N,T,4] y)
<float root = {1.4142135}, float one = {1}, float half = {0.5}, int64[3] flat = {0, 8, -1},
 float[8] each = {1, 2, 3, 4, 5, 6, 7, 8}> {
  c = Conv <group = 8, kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
  f = Reshape (c, flat)
  t = Transpose <perm = [0, 2, 1]> (f)
  d = Div (t, root)
  e = Erf (d)
  a = Add (e, one)
  m = Mul (t, a)
  h = Mul (m, half)
  s = Add (h, each)
  y = MatMul (s, p)
}"""
"""PVT's and SegFormer's: GELU on tokens, between a depthwise convolution and a product."""


def test_an_activation_of_tokens_joins_the_convolution_before_them() -> None:
    """Nothing stands between the two kernels but a view."""
    model = parse(TOKENS)
    kept = [i for i in model.graph.input if i.name == "x"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    numbers = np.random.default_rng(0)
    for name, shape in (("w", (8, 1, 3, 3)), ("p", (8, 4))):
        model.graph.initializer.append(numpy_helper.from_array(numbers.normal(size=shape).astype(np.float32), name))
    made, _ = optimize(halved(model))
    assert any("Conv" in op and "Erf" in op for op in ops(made)), ops(made)


def test_in_one_turn() -> None:
    """What is optimized stays as it is."""
    made, _ = optimize(parse(TOKENS), "expand")
    assert ops(made).count("Reshape") == 1
    assert optimize(made, "expand")[0] == made
    assert_same_numbers(parse(TOKENS), made)


CHANNELS_FIRST = """g (float[N,8,5,5] x, float[4,8,1,1] w) => (float[N,4,25] y)
<float one = {1}, int64[3] flat = {0, 4, -1}> {
  c = Conv (x, w)  f = Reshape (c, flat)  r = Relu (f)  y = Add (r, one) }"""


def test_channels_first_too() -> None:
    """One number is the same wherever the channels are."""
    model = parse(CHANNELS_FIRST)
    made, _ = optimize(model, "expand")
    assert ops(made) == ["Conv", "Relu", "Add", "Reshape"]
    assert_same_numbers(model, made)


ENDS = {
    "an image": """g (float[N,2,5,6] x, float[8,2,3,3] w, float[1,8,3,3] v, float[1] b) => (float[N,1,H,W] y) {
      c = Conv (x, w)  r = Relu (c)  d = Conv <pads = [1,1,1,1]> (r, v, b)  y = Sigmoid (d) }""",
    "a signal": """g (float[N,2,9] x, float[8,2,3] w, float[1,8,3] v, float[1] b) => (float[N,1,L] y) {
      c = Conv (x, w)  r = Relu (c)  d = Conv <pads = [1,1]> (r, v, b)  y = Tanh (d) }""",
}


@pytest.mark.parametrize("name", list(ENDS))
def test_the_activation_of_one_channel_joins_the_last_convolution(name: str) -> None:
    """Laid out channels last its image is a view, and the activation stands before it."""
    model = parse(ENDS[name])
    kept = [i for i in model.graph.input if i.name == "x"]
    numbers = np.random.default_rng(0)
    for value in model.graph.input[1:]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        model.graph.initializer.append(
            numpy_helper.from_array(numbers.normal(size=shape).astype(np.float32), value.name)
        )
    del model.graph.input[:]
    model.graph.input.extend(kept)
    made, _ = optimize(model)
    assert ops(made)[-1] == "Reshape"
    assert ops(made)[-2] in (
        "{Transpose Transpose Conv Transpose Add Sigmoid}",
        "{Transpose Transpose Conv Transpose Add Tanh}",
    )
    assert_same_numbers(model, made)


LEFT = {
    "two ends": """g (float[N,8,5,5] x, float[4,8,1,1] w) => (float[N,4,25] y, float[N,4,25] z)
      <int64[3] flat = {0, 4, -1}> { c = Conv (x, w)  f = Reshape (c, flat)  y = Relu (f)  z = Exp (f) }""",
    "the view is an output": """g (float[N,8,5,5] x, float[4,8,1,1] w) => (float[N,4,25] f, float[N,4,25] y)
      <int64[3] flat = {0, 4, -1}> { c = Conv (x, w)  f = Reshape (c, flat)  y = Relu (f) }""",
    "positions": """g (float[N,8,5,5] x, float[4,8,1,1] w, float[4,25] p) => (float[N,4,25] y)
      <int64[3] flat = {0, 4, -1}> { c = Conv (x, w)  f = Reshape (c, flat)  y = Add (f, p) }""",
    "a number for each place": """g (float[N,8,2,2] x, float[4,8,1,1] w) => (float[N,4,4] y)
      <int64[3] flat = {0, 4, -1}, float[4] p = {1, 2, 3, 4}> {
      c = Conv (x, w)  f = Reshape (c, flat)  y = Add (f, p) }""",
    "the image is read": """g (float[N,8,5,5] x, float[4,8,1,1] w) => (float[N,4,25] y, float[N,4,5,5] z)
      <int64[3] flat = {0, 4, -1}> { c = Conv (x, w)  f = Reshape (c, flat)  y = Relu (f)  z = Exp (c) }""",
    "integers": """g (float[N,8,5,5] x, float[4,8,1,1] w) => (float[N,4,25] y)
      <int64[3] flat = {0, 4, -1}, float s = {0.1}> {
      c = Conv (x, w)  q = QuantizeLinear (c, s)  f = Reshape (q, flat)  y = DequantizeLinear (f, s) }""",
    "no convolution": """g (float[N,8] x, float[8,12] w) => (float[N,3,4] y)
      <int64[3] apart = {0, 3, 4}> { m = MatMul (x, w)  f = Reshape (m, apart)  y = Relu (f) }""",
}


@pytest.mark.parametrize("name", list(LEFT))
def test_the_rest_stays(name: str) -> None:
    """A view more, or numbers of which the image knows nothing; integers are viewed before they are dequantized."""
    model = parse(LEFT[name])
    assert not elementwise_before_view(Graph(model.graph, infer(model).graph, 17))
