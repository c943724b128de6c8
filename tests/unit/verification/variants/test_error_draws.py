"""Which models have errors of float32 arithmetic alone."""

import math

import numpy as np
import pytest

from onnxfuse.verification.variants.error_draws import error_draws
from tests.support.verification.small_models import text_model

OTHERS = {
    "half": "g (float16[n] x) => (float16[n] y) { y = Exp(x) }",
    "half inside": "g (float[n] x) => (float[n] y) { h = Cast <to = 10> (x)  e = Exp(h)  y = Cast <to = 1> (e) }",
    "double inside": "g (float[n] x) => (float[n] y) { h = Cast <to = 11> (x)  e = Exp(h)  y = Cast <to = 1> (e) }",
    "quantized": "g (float[n] x) => (float[n] y) { q = QuantizeLinear(x, s)  y = DequantizeLinear(q, s) }",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_model_of_other_types_has_none(kind: str) -> None:
    assert error_draws(text_model(OTHERS[kind], s=np.array(0.1, np.float32))) is None


def test_a_float32_model_has_them_inside_bodies_too() -> None:
    """The mean of a sum that is computed in the body of an If."""
    made = text_model("""g (float[1000] x, bool c) => (float[1] y) {
        y = If (c) <
          then_branch = a () => (float[1] p) { p = ReduceMean <keepdims = 1> (x) },
          else_branch = b () => (float[1] q) { q = ReduceSum <keepdims = 1> (x) }
        > }""")
    draw = error_draws(made)
    assert draw is not None
    x = np.random.default_rng(0).random(1000).astype(np.float32)
    drawn = np.array([draw({"x": x, "c": np.array(True)}, seed, math.inf)["y"][0] for seed in range(32)])
    error = np.abs(drawn - x.astype(np.float64).mean()).max()
    assert np.spacing(np.float32(0.5)) < error < 1000 * np.spacing(np.float32(0.5))
