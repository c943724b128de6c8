"""What a lost epsilon takes to be seen, and where the type itself hides it."""

import re

import numpy as np
import pytest
from onnx import numpy_helper

from onnxfuse.verification import verify
from tests.support.verification import mutants
from tests.support.verification.mutants import MUTANTS
from tests.support.verification.small_models import model

CPU = ["CPUExecutionProvider"]
EPSILON = 1e-5

NETWORKS = {
    "the norm first": "y = LayerNormalization(x, g, b)",
    "after a product": "a = MatMul(x, w)  y = LayerNormalization(a, g, b)",
    "after a product and Relu": "m = MatMul(x, w)  a = Relu(m)  y = LayerNormalization(a, g, b)",
    "after a bias": "m = MatMul(x, w)  h = Add(m, b)  a = Relu(h)  y = LayerNormalization(a, g, b)",
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_lost_epsilon_is_seen_where_variances_can_be_small(name: str, dtype: str) -> None:
    """The small inputs and the row of zeros take the variance to where 1e-5 shows, in half precision too."""
    text = NETWORKS[name]
    lost = re.sub(r"LayerNormalization", "LayerNormalization <epsilon = 0.0>", text)
    assert not verify(model(text, dtype), model(lost, dtype), providers=CPU).ok


def test_where_a_bias_keeps_the_variance_up_float16_cannot_tell() -> None:
    """Of the planted faults this is the one that float16 hides: every output is the same within one rounding.

    A root over v + epsilon in place of v changes the result by epsilon / 2v of itself. The bias of the layer before
    holds v above 0.017 whatever small inputs are given, and 1e-5 / 0.034 is less than a rounding step of float16.
    So nothing that judges by the output can see it; float32, whose steps are 8192 times finer, does.
    """
    mutant = next(m for m in MUTANTS if m.name == "epsilon lost")
    weights = {t.name: numpy_helper.to_array(t) for t in mutants.original(mutant).graph.initializer}
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((64, mutants.SIDE)) * scale for scale in (1.0, 2.0**-8, 0.0)]
    least = min(np.maximum(x @ weights["w0"] + weights["b0"], 0).var(-1).min() for x in inputs)
    assert 0 < EPSILON / (2 * least) < np.finfo(np.float16).eps
    assert EPSILON / (2 * least) > 100 * np.finfo(np.float32).eps
