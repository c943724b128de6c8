"""Convolutions of few channels: the model's own images, groups and odd numbers of channels, each with what follows."""

import pytest

from onnxfuse.model.fused import fused_ops
from tests.support.channels_last import weights
from tests.support.small import assert_same_numbers, ops, optimize, parse

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def net(first: str, channels: int = 3, group: int = 1, filters: int = 8) -> str:
    """Return a first convolution, `first`, and a second one that makes turning the images around worthwhile."""
    kept = ", ".join([
        weights("w", 8, channels, 3, 3), weights("v", filters, 8 // group, 3, 3), "float[8] b = {1,2,3,4,5,6,7,8}",
    ])  # fmt: skip
    return f"""{HEAD} g (float[N,{channels},H,W] x) => (float[N,{filters},H,W] y) <{kept}> {{
      {first}
      d = Conv <group = {group}, pads = [1,1,1,1]> (a, v)
      y = Relu (d)
    }}"""


FIRST = "c = Conv <pads = [1,1,1,1]> (x, w, b) a = Relu (c)"


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_first_layer_reads_the_models_images_as_they_lie(channels: int) -> None:
    """No conversion of the layout stands before it."""
    made, _ = optimize(parse(net(FIRST, channels)))
    assert ops(made)[0] == "{Transpose Transpose Transpose Conv Transpose Add Relu}"
    assert made.graph.node[0].input[0] == "x"
    assert_same_numbers(parse(net(FIRST, channels)), made)


def test_images_that_others_read_turned_are_turned_once() -> None:
    """Two first layers: the conversion is no part of either."""
    text = f"""{HEAD} g (float[N,3,H,W] x) => (float[N,8,H,W] y)
    <{weights("w", 8, 3, 3, 3)}, {weights("v", 8, 3, 1, 1)}, {weights("u", 8, 8, 3, 3)}> {{
      c = Conv <pads = [1,1,1,1]> (x, w)
      d = Conv <strides = [1,1]> (x, v)
      s = Add (c, d)
      y = Conv <pads = [1,1,1,1]> (s, u)
    }}"""
    made, _ = optimize(parse(text))
    turned = [n for n in ops(made) if n == "{Transpose}" or n == "Transpose"]
    assert len(turned) == 2
    assert_same_numbers(parse(text), made)


@pytest.mark.parametrize(("group", "filters"), [(2, 8), (4, 12), (1, 7)])
def test_groups_and_odd_numbers_of_filters_are_kernels_too(group: int, filters: int) -> None:
    made, _ = optimize(parse(net(FIRST, group=group, filters=filters)))
    assert [op.rule for op in fused_ops(made).values()].count("direct") == 2
    assert_same_numbers(parse(net(FIRST, group=group, filters=filters)), made)
