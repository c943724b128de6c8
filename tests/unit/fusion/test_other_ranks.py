"""Convolutions over one and three dimensions stay with the library; what stands around them is one kernel."""

import pytest

from tests.support.small import assert_same_numbers, ops, optimize, parse

NORM = "float[3] s = {1,2,-1}, float[3] t = {0.5,0,1}, float[3] m = {0.1,-0.2,0.3}, float[3] v = {1,2,0.5}"


def net(extents: str, kernel: str, pads: str) -> str:
    """Return a residual block as text: convolution, norm, activation and sum, on images of open extents."""
    count = 6 * eval(kernel.replace(",", "*"))
    numbers = ",".join(str(n % 5 - 2) for n in range(count))
    return f"""g (float[N,2,{extents}] x, float[N,3,{extents}] r) => (float[N,3,{extents}] y)
    <float[3,2,{kernel}] w = {{{numbers}}}, float[3] b = {{0.5,-1,2}}, {NORM}> {{
      c = Conv <pads = [{pads}]> (x, w, b)
      n = BatchNormalization (c, s, t, m, v)
      a = LeakyRelu (n)
      y = Add (a, r)
    }}"""


@pytest.mark.parametrize(
    ("extents", "kernel", "pads"), [("L", "3", "1,1"), ("D,H,W", "1,3,3", "0,1,1,0,1,1")], ids=["1-D", "3-D"]
)
def test_norm_bias_activation_and_residual_are_one_kernel(extents: str, kernel: str, pads: str) -> None:
    """The norm is in the weights, the rest in one kernel after a convolution without bias; no layout is changed."""
    model = parse(net(extents, kernel, pads))
    made, _ = optimize(model)
    assert ops(made) == ["Conv", "{Add LeakyRelu Add}"]
    assert_same_numbers(model, made)
