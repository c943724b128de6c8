"""The error that a node alone would have in a lower type, measured where every digit is known."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxfuse.precision import plan, scopes
from onnxfuse.precision.measure import measure

HALF = TensorProto.FLOAT16
MODEL = """<ir_version: 9, opset_import: ["" : 17]> g (float[4] x) => (float[4] r)
  <float[1] one = {1}> { d = Sub (x, one)  r = Relu (d) }"""


def test_a_node_is_charged_with_the_rounding_of_what_it_reads() -> None:
    """1 + k / 4096 in float16 is 1 or 1 + 4 / 4096: the difference from 1 errs so, Relu not at all."""
    model = onnx.parser.parse_model(MODEL)
    nodes = plan.float_nodes(scopes.scopes_of(model), plan.opsets_of(model))
    x = (1 + np.array([1, 1, 3, 3]) / 4096).astype(np.float32)
    found = measure(model, nodes, (HALF,), [{"x": x}, {"x": x}], 60.0, lambda text: None)
    exact = np.array([1, 1, 3, 3])
    off = np.sqrt(np.mean((np.array([0, 0, 4, 4]) - exact) ** 2) / np.mean(exact**2))
    difference, relu = found.observed["d"], found.observed["r"]
    assert difference.error == {HALF: pytest.approx(off)}
    assert difference.blamed == {HALF: {0: pytest.approx(off)}}  # the constant is exact
    assert difference.inexact == {HALF: {0: pytest.approx(1 / 4096, rel=0.01)}}
    assert (relu.error, relu.blamed, relu.inexact) == ({HALF: 0.0}, {}, {HALF: {}})
    assert (difference.largest, relu.largest, difference.infinite) == (3 / 4096, 3 / 4096, False)
    assert [list(case) for case in found.outputs] == [["r"], ["r"]]
