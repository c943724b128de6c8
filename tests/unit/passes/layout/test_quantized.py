"""Regions of quantized images: 8 bits move channels last from the first convolution to the last."""

from functools import partial

import numpy as np
from onnx import ModelProto, numpy_helper

from tests.support import small
from tests.support.small import ops, optimize, run, signed_inputs

parse = partial(small.parse, opset=21)


def stem() -> ModelProto:
    """Return the start of a quantized ResNet: three channels convolve in float32, sixteen in int8; scales are powers of
    two, so that nothing is rounded but by Q."""
    model = parse(
        """g (float[N,3,8,8] x) => (int8[N,16,4,4] y)
<float s = {0.03125}, int8 none = {0}, float t = {0.25}, float u = {0.5}, float w = {0.0078125},
 int8 z = {-128}> {
  qx = QuantizeLinear (x, s, none)
  dx = DequantizeLinear (qx, s, none)
  k = DequantizeLinear (k8, w)
  c = Conv <pads = [1,1,1,1]> (dx, k)
  r = Relu (c)
  qr = QuantizeLinear (r, t, z)
  dr = DequantizeLinear (qr, t, z)
  p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (dr)
  qp = QuantizeLinear (p, u, z)
  dp = DequantizeLinear (qp, u, z)
  l = DequantizeLinear (l8, w)
  e = Conv <pads = [1,1,1,1]> (dp, l)
  y = QuantizeLinear (e, u, none)
}"""
    )
    random = np.random.default_rng(0)
    for name, shape in {"k8": (16, 3, 3, 3), "l8": (16, 16, 3, 3)}.items():
        array = random.integers(-127, 128, shape).astype(np.int8)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def test_a_stem_is_turned_at_its_ends_alone() -> None:
    """Between the convolutions no kernel moves elements, and none changes a scale: the pool writes the next one."""
    model = stem()
    made, _ = optimize(model)
    assert ops(made) == [
        "{QuantizeLinear Transpose Pad}",
        "{Transpose Transpose ConvInteger Transpose Cast Mul Relu QuantizeLinear}",
        "{Transpose MaxPool Transpose DequantizeLinear QuantizeLinear}",
        "{Transpose Transpose ConvInteger Transpose Cast Mul QuantizeLinear}",
        "Transpose",
    ]
    inputs = signed_inputs(model)
    np.testing.assert_array_equal(run(made, inputs)[0], run(model, inputs)[0])


def test_an_integer_convolution_that_no_kernel_computes_stays_channels_first() -> None:
    """Without the rule of its kernel; optimizing ends, and the file computes the same."""
    model = stem()
    made, report = optimize(model, *(r.name for r in small.rules() if r.name != "conv_integer"))
    assert "ConvInteger" in ops(made)
    assert any("no kernel does" in near.refusal.reason for near in report.stopped)
    inputs = signed_inputs(model)
    np.testing.assert_array_equal(run(made, inputs)[0], run(model, inputs)[0])
