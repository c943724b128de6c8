"""The error that a node alone would have in a lower type, measured where every digit is known."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxfuse.precision import plan, scopes
from onnxfuse.precision.measure import SENSITIVE, measure

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


def test_inputs_are_blamed_one_by_one_where_there_are_several_and_the_node_amplifies() -> None:
    """A sum of numbers of one sign errs as its operands do, and a sine of a large number has one input alone."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]> g (float[4] x) => (float[4] r)
      { s = Add (x, x)  t = Sin (x)  u = Neg (x)  d = Sub (s, u)  r = Add (d, t) }""")
    nodes = plan.float_nodes(scopes.scopes_of(model), plan.opsets_of(model))
    x = np.array([1000.3, 1001.2, 1002.6, 1003.4], np.float32)
    found = measure(model, nodes, (HALF,), [{"x": x}], 60.0, lambda text: None).observed
    eps = 2.0**-10
    assert 0 < found["s"].error[HALF] < eps
    assert found["t"].error[HALF] > SENSITIVE * eps
    assert (found["s"].blamed, found["t"].blamed) == ({}, {})


@pytest.mark.parametrize(("margin", "blamed"), [(1.2, False), (0.9, True)])
def test_a_node_is_examined_from_an_eightfold_error_on(margin: float, blamed: bool) -> None:
    """1 + eps / 4 becomes 1 in float16, and a difference that is a sixteenth of it errs by eight half eps."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
      g (float[1] x, float[1] c) => (float[1] d) { d = Sub (x, c) }""")
    nodes = plan.float_nodes(scopes.scopes_of(model), plan.opsets_of(model))
    eps = 2.0**-10
    left = round(margin / (2 * SENSITIVE) / eps) * eps
    feed = {"x": np.float32([1 + eps / 4]), "c": np.float32([1 - left])}
    found = measure(model, nodes, (HALF,), [feed], 60.0, lambda text: None).observed["d"]
    assert found.error[HALF] == pytest.approx(eps / 4 / (left + eps / 4), rel=1e-3)
    assert bool(found.blamed) == blamed


def test_a_constant_is_rounded_as_the_file_stores_it_and_an_input_as_it_comes() -> None:
    """An epsilon below the range is written as the smallest number, so that what it protects is not zero."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
      g (float[1] x, float[1] e) => (float[1] r)
      <float[1] tiny = {1e-9}> { c = Add (x, tiny)  i = Add (x, e)  r = Max (c, i) }""")
    nodes = plan.float_nodes(scopes.scopes_of(model), plan.opsets_of(model))
    feed = {"x": np.zeros(1, np.float32), "e": np.full(1, 1e-9, np.float32)}
    found = measure(model, nodes, (HALF,), [feed], 60.0, lambda text: None).observed
    assert found["c"].error[HALF] == pytest.approx(2.0**-24 / 1e-9 - 1, rel=1e-3)
    assert found["i"].error[HALF] == pytest.approx(1.0)
