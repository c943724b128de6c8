"""Quantized convolutions in the form in which kernels convolve integers of 8 bits."""

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from tests.support.small import assert_same_numbers, ops, optimize, parse

DYNAMIC = "m = ConvInteger <{how}> (q, w, z) f = Cast <to = 1> (m) y = Mul (f, s)"
STATIC = "a = DequantizeLinear (q, s, z) k = DequantizeLinear (w, s) y = Conv <{how}> (a, k)"
ZERO_POINTS = {DYNAMIC: "uint8 z, float s", STATIC: ""}
CONSTANTS = {DYNAMIC: "", STATIC: "<uint8 z = {3}, float s = {0.02}>"}


def convolution(nodes: str, how: str, shape: str, kernel: tuple[int, ...]) -> ModelProto:
    """Return a convolution of 16 channels by 24 filters, images or signals of a shape with names."""
    inputs = ", ".join(filter(None, (f"uint8[N,16,{shape}] q", ZERO_POINTS[nodes])))
    extents = ",".join("PQR"[: len(kernel)])
    model = parse(
        f"g ({inputs}) => (float[N,24,{extents}] y) {CONSTANTS[nodes]} {{ {nodes.format(how=how)} }}", opset=21
    )
    w = np.random.default_rng(0).integers(-127, 128, (24, 16, *kernel)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return model


@pytest.mark.parametrize("nodes", [DYNAMIC, STATIC], ids=["dynamic", "static"])
@pytest.mark.parametrize("how", ["pads = [1,2]", "strides = [2]", "dilations = [2], pads = [2,2]"])
def test_signals_are_images_of_one_row(nodes: str, how: str) -> None:
    model = convolution(nodes, how, "L", (3,))
    made, _ = optimize(model)
    assert any("ConvInteger" in op for op in ops(made))
    assert_same_numbers(model, made)


@pytest.mark.parametrize("nodes", [DYNAMIC, STATIC], ids=["dynamic", "static"])
@pytest.mark.parametrize(
    ("how", "shape", "known"),
    [
        ('auto_pad = "SAME_UPPER", strides = [2,2]', "9,8", True),
        ('auto_pad = "SAME_LOWER", strides = [2,2]', "9,8", True),
        ('auto_pad = "SAME_UPPER"', "H,W", True),
        ('auto_pad = "SAME_LOWER"', "H,W", True),
        ('auto_pad = "SAME_UPPER", strides = [2,2]', "H,W", False),
        ('auto_pad = "SAME_UPPER", strides = [2,1]', "H,W", False),
        ('auto_pad = "SAME_UPPER", strides = [1,2]', "H,8", True),
    ],
)
def test_padding_that_is_known(nodes: str, how: str, shape: str, known: bool) -> None:
    """Beside a zero point kernels of integers take padding in numbers."""
    model = convolution(nodes, how, shape, (3, 2))
    made, _ = optimize(model)
    assert any("ConvInteger" in op for op in ops(made)) == known
    assert_same_numbers(model, made)
