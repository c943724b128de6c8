"""Quantized values in the 8-bit type in which their zero point is 0."""

from functools import partial

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, numpy_helper

from tests.support import small
from tests.support.small import assert_same_numbers, numbers, optimize, run, signed_inputs

parse = partial(small.parse, opset=21)
"""Of the first operator set that onnx's reference has DequantizeLinear of."""


@pytest.mark.parametrize(("type_", "zero", "other"), [("int8", -128, 2), ("uint8", 128, 3)])
def test_activations(type_: str, zero: int, other: int) -> None:
    """Those behind a Relu as int8, symmetric ones as uint8."""
    model = parse(
        f"""g (float[N,4] x) => (float[N,4] y, float[N,4] w) <float s = {{0.02}}, {type_} z = {{{zero}}}> {{
  q = QuantizeLinear (x, s, z)
  a = DequantizeLinear (q, s, z)
  b = DequantizeLinear (q, s, z)
  y = Neg (a)
  w = Abs (b)
}}"""
    )
    made, _ = optimize(model, "softmax")
    quantize = next(n for n in made.graph.node if n.op_type == "QuantizeLinear")
    constants = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    assert constants[quantize.input[2]] == 0
    assert next(t for t in made.graph.initializer if t.name == quantize.input[2]).data_type == other
    for node in (n for n in made.graph.node if n.op_type == "DequantizeLinear"):
        assert [constants[v].tolist() for v in node.input[2:]] == ([] if other == 2 else [0])
    assert_same_numbers(model, made)


@pytest.mark.parametrize(
    ("outputs", "zeros"),
    [("float[N,4] y, int8[N,4] q", "-128, -128"), ("float[N,4] y", "-128, 0"), ("float[N,4] y", "3, 3")],
)
def test_what_is_read_as_it_is_stays(outputs: str, zeros: str) -> None:
    """Outputs of the model; values whose readers subtract another zero point; zero points that are 0 in no type."""
    first, second = zeros.split(", ")
    model = parse(
        f"""g (float[N,4] x) => ({outputs}) <float s = {{0.02}}, int8 z = {{{first}}}, int8 t = {{{second}}}> {{
  q = QuantizeLinear (x, s, z)
  y = DequantizeLinear (q, s, t)
}}"""
    )
    made, _ = optimize(model, "softmax")
    assert made.graph.node[0].input[2] == "z"
    assert_same_numbers(model, made)


def test_weights_of_unsigned_bytes() -> None:
    model = parse(
        """g (float[N,2] x) => (float[N,3] y) <uint8[2,3] w = {0,1,127,128,129,255}, float s = {0.5}, uint8 z = {128}> {
  b = DequantizeLinear (w, s, z)
  y = MatMul (x, b)
}"""
    )
    made, _ = optimize(model, "softmax")
    weight = next(t for t in made.graph.initializer if t.data_type == 3 and t.dims)
    assert numpy_helper.to_array(weight).tolist() == [[-128, -127, -1], [0, 1, 127]]
    assert_same_numbers(model, made)


def test_a_zero_point_for_each_channel() -> None:
    model = parse(
        """g (float[N,2] x) => (float[N,2] y) <float[2] s = {0.5,0.25}, uint8[2] z = {128,128}> {
  q = QuantizeLinear (x, s, z)
  y = DequantizeLinear (q, s, z)
}"""
    )
    made, _ = optimize(model, "softmax")
    zero = next(t for t in made.graph.initializer if t.name == made.graph.node[0].input[2])
    assert (zero.data_type, list(zero.dims)) == (3, [2])
    assert_same_numbers(model, made)


def test_the_zero_point_has_the_type_of_the_result() -> None:
    model = parse(
        """g (float[N,2] x) => (float[N,2] y) <float s = {0.5}, uint8 z = {128}> {
  q = QuantizeLinear <output_dtype = 2> (x, s, z)
  y = DequantizeLinear (q, s, z)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert not made.graph.node[0].attribute
    assert_same_numbers(model, made)


IMAGES = f"float[16,16,3,3] k = {{{numbers(2304, 7)}}}, float s = {{0.03}}"
MOVED = {
    "a convolution reads it": f"""(float[N,16,8,8] x) => (float[N,16,8,8] y) <{IMAGES}, int8 z = {{0}}> {{
  t = Tanh (x)
  q = QuantizeLinear (t, s, z)
  d = DequantizeLinear (q, s, z)
  y = Conv <pads = [1,1,1,1]> (d, k)
}}""",
    "uint8 in the file": f"""(float[N,16,8,8] x) => (float[N,16,8,8] y) <{IMAGES}, uint8 z = {{128}}> {{
  t = Tanh (x)
  q = QuantizeLinear (t, s, z)
  d = DequantizeLinear (q, s, z)
  c = Conv <pads = [1,1,1,1]> (d, k)
  y = Add (c, d)
}}""",
}


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_numbers_below_zero_survive_what_onnx_runtime_moves(name: str, opset: int) -> None:
    """ONNX Runtime writes a QuantizeLinear with the inputs of a DequantizeLinear behind a Transpose, as
    in a body with channels last: without a zero point that one makes 0 of what is below it."""
    model = small.parse(f"g {MOVED[name]}", opset=opset)
    made, _ = optimize(model)
    inputs = signed_inputs(model)
    (right,) = run(model, inputs)
    assert right.min() < -0.5
    assert np.abs(_by_default(made, inputs) - right).max() < 1e-4


def _by_default(model: ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return what a session with ONNX Runtime's default optimizations gives."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])
