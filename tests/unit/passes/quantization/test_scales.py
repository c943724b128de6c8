"""One form of Q and DQ: scalars for one scale, an axis for several, no zero point of zero."""

from functools import partial

import pytest

from tests.support import small
from tests.support.small import assert_same_numbers, ops, optimize

parse = partial(small.parse, opset=21)
"""Of the first operator set that onnx's reference has DequantizeLinear of."""

FORMS = {
    "a scale of shape [1], at an axis": ("float[1] s = {0.5}, uint8[1] z = {3}", "<axis = 1>", None, 3),
    "one scale": ("float s = {0.5}, uint8 z = {3}", "", None, 3),
    "a zero point of zero": ("float s = {0.5}, uint8 z = {0}", "", None, 2),
    "a scale for each column": ("float[4] s = {0.5,1,2,4}, uint8[4] z = {3,2,1,0}", "<axis = -1>", 2, 3),
    "the axis by default": ("float[3] s = {0.5,1,2}, uint8[3] z = {3,2,1}", "", 1, 3),
}


@pytest.mark.parametrize("name", FORMS)
def test_dequantize(name: str) -> None:
    constants, attributes, axis, inputs = FORMS[name]
    model = parse(
        f"g (uint8[N,3,4] x) => (float[N,3,4] y) <{constants}> {{ y = DequantizeLinear {attributes} (x, s, z) }}"
    )
    made, _ = optimize(model, "softmax")
    (node,) = made.graph.node
    assert [a.i for a in node.attribute] == ([] if axis is None else [axis])
    assert len(node.input) == inputs
    assert_same_numbers(model, made)


def test_a_zero_point_of_zero_stays_the_type_of_a_quantize() -> None:
    model = parse(
        """g (float[N,4] x) => (int8[N,4] y) <float[1] s = {0.5}, int8[1] z = {0}> {
  y = QuantizeLinear <axis = 0> (x, s, z)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert [len(made.graph.node[0].input), len(made.graph.node[0].attribute)] == [3, 0]
    assert_same_numbers(model, made)


def test_a_computed_scale_has_no_axis_once_its_shape_is_known() -> None:
    """It is the range of the activations, a number."""
    model = parse("g (float[N,4] x) => (uint8[N,4] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear (x) }")
    made, _ = optimize(model, "dynamic_range")
    assert not next(n for n in made.graph.node if n.op_type == "QuantizeLinear").attribute
    assert_same_numbers(model, made)


def test_biases_are_computed_and_weights_stay_small() -> None:
    model = parse(
        """g (float[N,4] x) => (float[N,4] y, float[4,4] v)
<int32[4] b = {1,2,3,4}, float[4] t = {0.5,1,2,4}, int8[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, float s = {0.5}> {
  c = DequantizeLinear <axis = 0> (b, t)
  y = Add (x, c)
  k = DequantizeLinear (w, s)
  v = Neg (k)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made) == ["Add", "DequantizeLinear", "Neg"]
    assert_same_numbers(model, made)


def test_one_block_is_one_scale() -> None:
    model = parse(
        """g (uint8[N,4] x) => (float[N,4] y, float[1,4] v)
<int8[1,4] w = {1,2,3,4}, float[1,1] s = {0.5}, float t = {0.1}> {
  v = DequantizeLinear <axis = 1, block_size = 4> (w, s)
  k = DequantizeLinear (x, t)
  y = Mul (k, v)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert not any(n.attribute for n in made.graph.node)
    assert_same_numbers(model, made)


def test_a_vector_that_is_an_output_keeps_its_axis() -> None:
    model = parse(
        """g (float[N,4] x) => (float[4] y, float[N,4] z) <int32[4] b = {1,2,3,4}, float[4] s = {0.5,1,2,4}> {
  y = DequantizeLinear <axis = 0> (b, s)
  z = Add (x, y)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert_same_numbers(model, made)


def test_a_vector_of_blocks_is_computed() -> None:
    model = parse(
        """g (float[N,4] x) => (float[N,4] z) <int8[4] b = {1,2,3,4}, float[2] s = {0.5,1}> {
  y = DequantizeLinear <axis = 0, block_size = 2> (b, s)
  z = Add (x, y)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made) == ["Add"]
    assert_same_numbers(model, made)


def test_scales_of_unknown_shape_lie_along_an_axis() -> None:
    """Without one the node would be taken for elementwise."""
    model = parse(
        """g (uint8[N,4] x, float[M] t, int64[R] shape) => (float[N,4] y) {
  s = Reshape (t, shape)
  y = DequantizeLinear (x, s)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert [a.i for a in made.graph.node[1].attribute] == [1]
