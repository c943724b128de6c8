"""A BatchNormalization of weights by their own statistics is a weight; what else stands so stays."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxfuse
from tests.support.small import ops, parse

WEIGHTS = np.random.default_rng(0).standard_normal((1, 6, 36))
STANDARDIZED = """g (float16[N,4,8,8] x) => (float16[N,6,A,B] y)
<int64[4] filters = {6, 4, 3, 3}, float16[6] gain = {15360,15872,15360,15360,15360,15360},
 float16[6] bias = {0,0,0,0,0,15360}, float16[6] mean = {14336,0,0,0,0,0}, float16[6] var = {1,2,3,4,5,6}> {
  v, m, s = BatchNormalization <training_mode = 1, epsilon = 1e-6> (w, gain, bias, mean, var)
  f = Reshape (v, filters)  c = Conv (x, f)  y = Relu (c)
}"""
"""No two inputs are equal: ONNX Runtime keeps one of them then, and writes the new statistics over the gain, too."""


def model(text: str, opset: int) -> onnx.ModelProto:
    made = parse(text, opset)
    made.graph.initializer.append(numpy_helper.from_array(WEIGHTS.astype(np.float16), "w"))
    return made


@pytest.mark.parametrize("opset", [14, 17, 20])
def test_weights_are_standardized_once(opset: int) -> None:
    """Against ONNX Runtime's own, which it has on the CPU alone."""
    original = model(STANDARDIZED, opset)
    made = onnxfuse.optimize(original, only=["softmax"])
    assert ops(made) == ["Conv", "Relu"]
    x = np.random.default_rng(1).standard_normal((2, 4, 8, 8)).astype(np.float16)
    theirs, mine = (
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for m in (original, made)
    )
    np.testing.assert_allclose(mine.astype(np.float32), theirs.astype(np.float32), rtol=4e-3, atol=8e-3)


def test_the_statistics_of_data_and_those_that_are_given_out_stay() -> None:
    given = STANDARDIZED.replace("(float16[N,6,A,B] y)", "(float16[N,6,A,B] y, float16[6] m)")
    assert "BatchNormalization" in ops(onnxfuse.optimize(model(given, 17), only=["softmax"]))
    data = """g (float[N,6,8] x) => (float[N,6,8] y)
    <float[6] one = {1,1,1,1,1,1}, float[6] mean = {0,0,0,0,0,0}> {
      v, m, s = BatchNormalization <training_mode = 1> (x, one, mean, mean, one)  y = Relu (v)
    }"""
    assert "BatchNormalization" in ops(onnxfuse.optimize(parse(data, 17), only=["softmax"]))
