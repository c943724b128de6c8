"""Convolutions of integers: exact sums, whatever the zero points, the padding and the sizes of the images."""

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support import small
from tests.support.small import evaluate, ops, optimize, run

parse = partial(small.parse, opset=21)
"""Of the first operator set that onnx's reference has DequantizeLinear of."""
WINDOWS: Mapping[str, Mapping[str, Any]] = {
    "padded": {"pads": [1, 1, 1, 1]},
    "padded unevenly, strided": {"pads": [0, 1, 2, 0], "strides": [2, 2]},
    "dilated": {"pads": [2, 2, 2, 2], "dilations": [2, 2]},
    "unpadded": {},
    "padded to keep the size": {"auto_pad": "SAME_UPPER"},
    "padded by the size": {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
}
WEIGHTS = {
    "int8": (np.int8, 0),
    "uint8 around 128": (np.uint8, 128),
    "uint8 around 117": (np.uint8, 117),
}


def layer(weights: str, shape: tuple[int, ...], **attributes: Any) -> onnx.ModelProto:
    """Return a layer of quantize_dynamic: activations of uint8 by a weight of this type."""
    rng = np.random.default_rng(0)
    dtype, zero = WEIGHTS[weights]
    group = attributes.get("group", 1)
    model = parse(
        f"""g (float[N,{shape[1] * group},H,W] x) => (float[N,{shape[0]},V,U] y) {{
  q, s, z = DynamicQuantizeLinear (x)
  c = ConvInteger (q, w, z, n)
  f = Cast <to = 1> (c)
  t = Mul (s, sw)
  p = Mul (f, t)
  b = Add (p, bias)
  y = Relu (b)
}}"""
    )
    (node,) = (n for n in model.graph.node if n.op_type == "ConvInteger")
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    # Seven bits: ONNX Runtime's CPU kernels saturate sums of two products of eight.
    constants = {
        "w": (rng.integers(-64, 64, shape) + 128 * (dtype is np.uint8)).astype(dtype),
        "n": np.asarray(zero, dtype),
        "sw": np.float32(0.004),
        "bias": rng.standard_normal((1, shape[0], 1, 1)).astype(np.float32),
    }
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())
    return model


def assert_same(model: onnx.ModelProto, made: onnx.ModelProto, size: tuple[int, int]) -> None:
    """Assert that both give the same numbers by ONNX's reference, and nearly those of ONNX Runtime's CPU provider."""
    rng = np.random.default_rng(0)
    channels = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = rng.standard_normal((2, channels, *size)).astype(np.float32)
    (before,), (after,) = evaluate(model, {"x": x}), evaluate(made, {"x": x})
    np.testing.assert_allclose(after, before, rtol=0, atol=2e-6 * np.abs(before).max())
    (by_ort,) = run(made, {"x": x})
    np.testing.assert_allclose(by_ort, before, rtol=0, atol=2e-6 * np.abs(before).max())


@pytest.mark.parametrize(("window", "weights"), [*itertools.product(WINDOWS, WEIGHTS)])
def test_a_layer(window: str, weights: str) -> None:
    """Images of open sizes; in the kernel of integers unless the padding depends on the size. A last example is smaller
    than the window that covers it."""
    model = layer(weights, (8, 16, 3, 3), **WINDOWS[window])
    made, _ = optimize(model)
    found = ops(made)
    assert not {"ConvInteger", "DynamicQuantizeLinear", "Pad"} & {*found}
    inside = sum("ConvInteger" in op for op in found)
    assert inside == (0 if window == "padded by the size" else 1 + (weights == "uint8 around 117"))
    for size in ((6, 7), (9, 5), *[(1, 2)] * (window == "padded")):
        assert_same(model, made, size)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("shape", "group"), [((8, 3, 3, 3), 1), ((16, 1, 3, 3), 16)], ids=["first", "depthwise"])
def test_few_channels(shape: tuple[int, ...], group: int, weights: str) -> None:
    """The first layer of a network and a depthwise one have kernels of integers, too, but for weights whose zero point
    takes the sums over each window."""
    model = layer(weights, shape, group=group, pads=[1, 0, 1, 0])
    made, _ = optimize(model)
    found = ops(made)
    assert not {"ConvInteger", "DynamicQuantizeLinear"} & {*found}
    assert any("ConvInteger" in op for op in found) == (weights != "uint8 around 117")
    assert_same(model, made, (6, 7))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_what_no_kernel_of_integers_takes_is_convolved_as_numbers(weights: str) -> None:
    """One of few filters: the same sums, exactly."""
    model = layer(weights, (5, 16, 1, 1), group=1, pads=[0] * 4)
    made, _ = optimize(model)
    assert not any("ConvInteger" in op or op == "DynamicQuantizeLinear" for op in ops(made))
    assert_same(model, made, (6, 7))


def test_convolutions_of_the_same_activations_share_their_quantization() -> None:
    """A 3 x 3 and a 1 x 1 convolution of one image: its range is found once."""
    rng = np.random.default_rng(0)
    model = parse(
        """g (float[N,16,H,W] x) => (float[N,8,H,W] y) {
  r = Relu (x)
  q, s, z = DynamicQuantizeLinear (r)
  c = ConvInteger <pads = [1,1,1,1]> (q, w, z, n)
  d = ConvInteger (q, v, z, n)
  f = Cast <to = 1> (c)
  g = Cast <to = 1> (d)
  h = Add (f, g)
  y = Mul (h, s)
}"""
    )
    for name, shape in {"w": (8, 16, 3, 3), "v": (8, 16, 1, 1)}.items():
        weight = rng.integers(-64, 64, shape).astype(np.int8)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    model.graph.initializer.append(helper.make_tensor("n", TensorProto.INT8, [], [0]))
    made, _ = optimize(model)
    found = ops(made)
    assert sum("ConvInteger" in op for op in found if op.startswith("{")) == 1
    assert sum("MatMulInteger" in op for op in found if op.startswith("{")) == 1
    assert sum("Equal" in op for op in found) == 1
    assert_same(model, made, (6, 7))


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_operator_sets(opset: int) -> None:
    """DynamicQuantizeLinear is of operator set 11."""
    rng = np.random.default_rng(0)
    model = layer("uint8 around 117", (8, 16, 3, 3), pads=[1, 1, 1, 1])
    model.opset_import[0].version = opset
    made, _ = optimize(model)
    assert not {"ConvInteger", "DynamicQuantizeLinear", "Pad"} & {*ops(made)}
    x = {"x": rng.standard_normal((2, 16, 6, 7)).astype(np.float32)}
    np.testing.assert_allclose(run(made, x)[0], run(model, x)[0], rtol=0, atol=1e-5)
