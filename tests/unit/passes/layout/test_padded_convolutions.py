"""Zeros around what a convolution reads are its own padding: no copy."""

import pytest

from tests.support.small import assert_same_numbers, numbers, ops, optimize, parse

CAUSAL = f"""g (float[N,4,L] x) => (float[N,4,M] y)
<int64[6] pads = {{0,0,2,0,0,0}}, float[4,4,2] k = {{{numbers(32, 1)}}}> {{
  p = Pad (x, pads) y = Conv <dilations = [2]> (p, k) }}"""
VOLUME = f"""g (float[N,2,3,4,5] x) => (float[N,4,A,B,C] y)
<int64[4] pads = {{1,2,0,1}}, int64[2] axes = {{-1,2}}, float none, float[4,2,2,2,2] k = {{{numbers(64, 1)}}}> {{
  none = Constant <value = float {{0.0}}> () p = Pad (x, pads, none, axes) y = Conv (p, k) }}""".replace(
    " float none,", ""
)


@pytest.mark.parametrize(("text", "opset"), [(CAUSAL, 17), (VOLUME, 18)])
def test_signals_and_volumes(text: str, opset: int) -> None:
    """A causal convolution, zeros before the signal alone; zeros along two axes of a volume."""
    model = parse(text, opset)
    made, _ = optimize(model, "nhwc")
    assert_same_numbers(model, made)
    assert "Pad" not in ops(made)


@pytest.mark.parametrize(
    "changed", [("{0,0,2,0,0,0}", "{0,1,2,0,0,0}"), ("Conv", "r = Relu (p) z = ReduceMax (r) q = Add (p, z) y = Conv")]
)
def test_what_is_not_padding_stays(changed: tuple[str, str]) -> None:
    """A channel of zeros, or zeros that something else reads, too."""
    text = CAUSAL.replace("y = Conv", "Conv") if "q =" in changed[1] else CAUSAL
    text = text.replace(*changed, 1).replace("(p, k)", "(q, k)" if "q =" in changed[1] else "(p, k)")
    text = (
        text.replace("[4,4,2] k", "[4,5,2] k").replace(numbers(32, 1), numbers(40, 1))
        if "1,2,0" in changed[1]
        else text
    )
    model = parse(text)
    made, _ = optimize(model, "nhwc")
    assert_same_numbers(model, made)
    assert "Pad" in ops(made)
