"""What ONNX Runtime computes of constants before the first run stays where it computes it once."""

import pytest

import onnxfuse
from tests.support.small import assert_same_numbers, numbers, parse

SCATTERED = "a = ScatterND (z, at, w)"
"""All of it is written: it is the constant w, under the name of an output."""


@pytest.mark.parametrize("made", ["y = ReduceMax <axes = [0]> (c)", "i = ArgMax (c) y = Cast <to = 1> (i)"])
@pytest.mark.parametrize("others", [
    "t = Transpose <perm = [0,2,1]> (a) u = Expand (t, s)",
    "t = Transpose <perm = [2,0,1]> (a) u = Transpose <perm = [0,2,1]> (t)",
    "u = Expand (a, s)",
])  # fmt: skip
def test_no_kernel_takes_what_others_need_before_the_first_run(others: str, made: str) -> None:
    """In a kernel it would be computed in each run, and so would they; a second run of onnxfuse would fuse them."""
    text = f"""g (float[1,4,3] z, float[1] x) => (float[n,m,k] a, float[] u, float[] y)
    <int64[1,1] at = {{0}}, float[1,4,3] w = {{{numbers(12, 5)}}}, int64[3] s = {{1,1,1}}> {{
      {SCATTERED} {others} b = Min (a, x) c = Relu (b) {made} }}"""
    model = parse(text.replace("float[] u", "float[p,q,r] u").replace("float[] y", "float[d,e,f] y"), 11)
    optimized = onnxfuse.optimize(model)
    again = onnxfuse.optimize(optimized)
    assert again.SerializeToString(deterministic=True) == optimized.SerializeToString(deterministic=True)
    assert_same_numbers(model, optimized)
