"""Weights that stay floating-point keep their bits in sessions with ONNX Runtime's own optimizations."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, numpy_helper

from tests.support.small import ops, optimize, parse

PRODUCTS = {
    "MatMul": ("N,10", "N,6", "10,6", 1, "m = MatMul (a, k) y = Add (m, b)"),
    "MatMul with Relu": ("N,10", "N,6", "10,6", 1, "m = MatMul (a, k) s = Add (m, b) y = Relu (s)"),
    "Gemm": ("N,10", "N,6", "6,10", 0, "y = Gemm <transB = 1> (a, k, b)"),
    "a product of images": (
        "N,2,5", "N,2,3", "10,6", 1, "f = Reshape (a, flat) m = MatMul (f, k) s = Add (m, b) y = Reshape (s, images)",
    ),
    "Conv": ("N,10,4,4", "N,6,4,4", "6,10,1,1", 0, "y = Conv (a, k, b)"),
    "Conv of signals": ("N,10,4", "N,6,4", "6,10,1", 0, "y = Conv (a, k, b)"),
    "ConvTranspose": ("N,10,4,4", "N,6,4,4", "10,6,1,1", 1, "y = ConvTranspose (a, k, b)"),
}  # fmt: skip
"""Products that no kernel computes in 8 bits: shapes of input, output and weight, the axis of its scales, nodes."""


def made_of(name: str) -> ModelProto:
    """Return a product whose channels differ a thousandfold, dequantized before it and quantized behind it."""
    x, y, w, axis, nodes = PRODUCTS[name]
    model = parse(
        f"""g (uint8[{x}] q) => (uint8[{y}] out)
<float sx = {{0.02}}, uint8 z = {{3}}, int64[2] flat = {{-1,10}}, int64[3] images = {{-1,2,3}}> {{
  a = DequantizeLinear (q, sx, z)
  k = DequantizeLinear <axis = {axis}> (w, sw)
  {nodes}
  out = QuantizeLinear (y, sy, zy)
}}"""
    )
    rng = np.random.default_rng(1)
    numbers = {
        "w": rng.integers(-127, 128, [int(d) for d in w.split(",")], np.int8),
        "sw": np.geomspace(1e-5, 1e-2, 6).astype(np.float32),
        "b": rng.normal(0, 0.02, 6).astype(np.float32),
        "sy": np.float32(0.002),
        "zy": np.uint8(100),
    }
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(x), n) for n, x in numbers.items())
    return model


@pytest.mark.parametrize("name", PRODUCTS)
def test_they_are_not_quantized_again(name: str) -> None:
    """ONNX Runtime would quantize such a weight with one scale for the tensor."""
    model = made_of(name)
    made, _ = optimize(model)
    shape = [2 if d == "N" else int(d) for d in PRODUCTS[name][0].split(",")]
    q = np.random.default_rng(2).integers(0, 256, shape, np.uint8)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = ort.InferenceSession(model.SerializeToString(), options).run(None, {"q": q})
    (found,) = ort.InferenceSession(made.SerializeToString()).run(None, {"q": q})
    assert np.unique(expected).size > 4
    off = np.abs(expected.astype(int) - found)
    assert off.max() <= 1
    assert (off > 0).mean() < 0.05


@pytest.mark.parametrize("change", ["activations are not quantized", "the result stays"])
def test_others_stay_as_they_are(change: str) -> None:
    """ONNX Runtime quantizes only between both."""
    before, behind = ("Neg (q)", "QuantizeLinear (y, s)") if change.startswith("act") else ("Relu (q)", "Neg (y)")
    model = parse(
        f"""g (float[N,2] q) => (float[N,3] out) <float[2,3] k = {{1,2,3,4,5,6}}, float s = {{0.02}}> {{
  a = {before}
  y = MatMul (a, k)
  r = {behind}
  out = Cast <to = 1> (r)
}}"""
    )
    made, _ = optimize(model, "softmax")
    assert "Sum" not in ops(made)
