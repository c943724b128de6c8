"""A Concat of channels before a convolution: its kernel reads the parts, and what is side by side is never written."""

import pytest

from onnxfuse.model.fused import fused_ops
from onnxfuse.rewrite import pipeline
from onnxfuse.rewrite.language import rule_file
from tests.rewrite.nhwc.test_layout import weights
from tests.rewrite.small import assert_same_numbers, ops, optimize, parse

NARROW = [one for one in rule_file.shipped() if one.name == "narrow"]
CONV = """image = Transpose <perm = [0,3,1,2]> (x)
  filters = Transpose <perm = [0,3,1,2]> (w)
  c = Conv <pads = [1,1,1,1]> (image, filters)
  m = Transpose <perm = [0,2,3,1]> (c)"""


def net(first: str, p: int = 8, q: int = 24, more: str = "", outputs: str = "") -> str:
    """Return a convolution of `x`, which `first` computes from `p` and `q` channels, with `more` after it."""
    return f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[N,4,5,{p}] p, float[N,4,5,{q}] q, float[16,3,3,{p + q}] w) => (float[N,4,5,16] y{outputs}) {{
  {first}
  {CONV}
  y = Relu (m)
  {more}
}}"""


@pytest.mark.parametrize("axis", [3, -1])
def test_the_concat_is_in_the_convolutions_kernel(axis):
    model = parse(net(f"x = Concat <axis = {axis}> (p, q)"))
    pipeline.run(model, NARROW)
    assert ops(model) == ["{Concat Transpose Transpose Conv Transpose Relu}"]
    assert_same_numbers(parse(net(f"x = Concat <axis = {axis}> (p, q)")), model)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            net("x = Concat <axis = 3> (p, q)", more="z = Relu (x)", outputs=", float[N,4,5,32] z"),
            "read elsewhere, too",
        ),
        (net("x = Concat <axis = 3> (p, q)", 6, 26), "'p' has 6 channels, expected a multiple of 16 bytes"),
    ],
)
def test_a_concat_that_stays_is_told_why(text, told):
    """The convolution is a kernel all the same."""
    model = parse(text)
    report = pipeline.run(model, NARROW)
    assert "{Transpose Transpose Conv Transpose Relu}" in ops(model)
    assert "Concat" in ops(model)
    assert told in "\n".join(stop.reason for one in report.applied for stop in one.stops)
    assert_same_numbers(parse(text), model)


def test_images_below_each_other_stay():
    """A Concat of another axis than the channels."""
    text = net("x = Concat <axis = 1> (p, q)", 16, 16).replace("float[16,3,3,32]", "float[16,3,3,16]")
    text = text.replace("(float[N,4,5,16] y", "(float[N,8,5,16] y")
    model = parse(text)
    pipeline.run(model, NARROW)
    assert ops(model) == ["Concat", "{Transpose Transpose Conv Transpose Relu}"]


def test_a_dense_block_writes_nothing_side_by_side():
    """As torch exports it: each convolution on all values before it, the last one with the residual."""
    kept = ", ".join([weights("w", 16, 16, 3, 3), weights("v", 16, 32, 3, 3), weights("u", 16, 48, 3, 3)])
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[N,16,H,W] x) => (float[N,16,H,W] y) <{kept}> {{
      c = Conv <pads = [1,1,1,1]> (x, w)
      a = LeakyRelu <alpha = 0.2> (c)
      j = Concat <axis = 1> (x, a)
      d = Conv <pads = [1,1,1,1]> (j, v)
      b = LeakyRelu <alpha = 0.2> (d)
      k = Concat <axis = 1> (x, a, b)
      e = Conv <pads = [1,1,1,1]> (k, u)
      y = Add (x, e)
    }}"""
    made, _ = optimize(parse(text))
    assert "Concat" not in ops(made)
    assert [op.rule for op in fused_ops(made).values()].count("narrow") == 3
    assert_same_numbers(parse(text), made)
