"""Activations of ONNX Runtime's compute what they are defined by."""

from math import erf

import numpy as np
import pytest

from tests.support.definitions import assert_it_computes_what_the_kernel_does, at_opsets, inputs_of, model_of, written
from tests.support.small import numbers, run

ROW = f"float[8] scale = {{{numbers(8, 5)}}}"
ACTIVATIONS = {
    "gelu": f"""g (float[N,S,8] x) => (float[N,S,8] y) <{ROW}> {{ y = com.microsoft.BiasGelu (x, scale) }}""",
    "alone": """g (float[N,S,8] x) => (float[N,S,8] y) { y = com.microsoft.Gelu (x) }""",
    "fast": f"""g (float[N,S,8] x) => (float[N,S,8] y) <{ROW}> {{ y = com.microsoft.FastGelu (x, scale) }}""",
    "fast alone": """g (float[N,S,8] x) => (float[N,S,8] y) { y = com.microsoft.FastGelu (x) }""",
    "quick": """g (float[N,S,8] x) => (float[N,S,8] y) { y = com.microsoft.QuickGelu (x) }""",
    "quick, of 1": """g (float[N,S,8] x) => (float[N,S,8] y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }""",
}


@pytest.mark.parametrize(("text", "opset"), at_opsets((ACTIVATIONS, (17, 19, 20))))
def test_it_computes_what_the_kernel_does(text: str, opset: int) -> None:
    """At operator sets with and without the operators that it is written in."""
    assert_it_computes_what_the_kernel_does(text, opset)


def test_half_a_gelu_times_the_other_half() -> None:
    """BiasSplitGelu has a kernel on CUDA alone."""
    text = """g (float[N,S,8] x) => (float[N,S,4] y) <float[8] b = {1,-1,2,0.5,0,1,-2,0.25}> {
      y = com.microsoft.BiasSplitGelu (x, b)
    }"""
    model = model_of(text)
    made, found = written(model)
    x = inputs_of(model)["x"]
    left, right = np.split(x + np.array([1, -1, 2, 0.5, 0, 1, -2, 0.25], np.float32), 2, -1)
    gelu = right * (1 + np.vectorize(erf)(right / 2**0.5)) / 2
    assert found == ["com.microsoft BiasSplitGelu"]
    np.testing.assert_allclose(run(made, {"x": x})[0], left * gelu, rtol=0, atol=1e-5)
