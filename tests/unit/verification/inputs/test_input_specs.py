"""Inputs that a model needs."""

import numpy as np

from onnxfuse.verification.inputs.input_specs import input_specs
from tests.support.verification.small_models import text_model


def test_inputs_with_a_weight_need_nothing() -> None:
    """Old models list their weights among the inputs."""
    made = text_model("g (float[n, 4] x, float[4] b) => (float[n, 4] y) { y = Add(x, b) }", b=np.zeros(4, "f"))
    assert [s.name for s in input_specs(made)] == ["x"]
