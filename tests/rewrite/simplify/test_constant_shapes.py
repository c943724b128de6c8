"""Targets that the types tell are constants, as well where a 0 in the exporter's own would not have been a copy."""

import numpy as np
import onnxruntime
import pytest

from onnxfuse.rewrite import pipeline
from tests.rewrite.small import parse

HEADS = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N,S,8] x) => (float[N,S,2,4] y) <int64[2] heads = {2,4}> {
  n = Shape <start = 0, end = 2> (x)  d = Concat <axis = 0> (n, heads)  a = Relu (x)
  r = Reshape <allowzero = ALLOW> (a, d)  y = Neg (r) }"""


@pytest.mark.parametrize("allow", [0, 1])
def test_a_target_that_the_types_tell_is_a_constant(allow: int) -> None:
    """Also of no rows: their 0 is copied."""
    model, made = (parse(HEADS.replace("ALLOW", str(allow))) for _ in range(2))
    pipeline.run(made, rules=())
    assert pipeline.count_ops(made) == {"Relu": 1, "Reshape": 1, "Neg": 1}
    for rows in (0, 3):
        x = np.arange(rows * 40, dtype=np.float32).reshape(rows, 5, 8) - 50
        mine, theirs = (
            onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
            for m in (made, model)
        )
        np.testing.assert_array_equal(mine[0], theirs[0])
        assert mine[0].shape == (rows, 5, 2, 4)
