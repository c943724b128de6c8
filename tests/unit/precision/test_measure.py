"""The error that a node alone would have in a lower type, measured where every digit is known."""

import math
import sys
import time
import types
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.precision import plan, scopes
from onnxfuse.precision.measure import SENSITIVE, NodeStatistics, difference, largest, measure
from onnxfuse.verification.reference import reference
from onnxfuse.verification.reference.reference import OutOfTime

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
    feed = {"x": np.array([1 + eps / 4], np.float32), "c": np.array([1 - left], np.float32)}
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


def measured(text: str, *feeds: dict[str, np.ndarray], **weights: np.ndarray) -> NodeStatistics:
    """Return the statistics of a model in text for float16; the named weights have other values than the text."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    nodes = plan.float_nodes(scopes.scopes_of(model), plan.opsets_of(model))
    return measure(model, nodes, (HALF,), feeds, 60.0, lambda text: None)


def test_what_is_no_number_is_exact() -> None:
    """NaN stays NaN in every type, of an input and of a constant."""
    nan = np.array([np.nan, 1], np.float32)
    found = measured("g (float[2] x) => (float[2] r) <float[2] c = {0, 1}> { r = Mul (x, c) }", {"x": nan}, c=nan)
    assert found.observed["r"].inexact == {HALF: {}}
    assert found.observed["r"].error == {HALF: 0.0}
    assert found.observed["r"].infinite


def test_only_floats_have_a_largest_number() -> None:
    """Positions and counts keep their type."""
    x = {"x": np.array([1, 3, 900, 2], np.float32)}
    observed = measured("g (float[4] x) => (int64[1] i, float[4] r) { i = ArgMax (x) r = Neg (x) }", x).observed
    assert (observed["i"].largest, observed["r"].largest) == (0.0, 900.0)
    empty = measured("g (float[n] x) => (float[n] r) { r = Neg (x) }", {"x": np.zeros(0, np.float32)}).observed
    assert (empty["r"].largest, empty["r"].infinite) == (0.0, False)


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        (np.array([3.0, 4]), np.array([3.0, 4]), 0.0), (np.zeros(2), np.array([3.0, 4]), 1.0),
        (np.float32(2.5), np.float64(2), 0.25), (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]), 0.25),
        (np.array([True, False]), np.array([True, True]), 0.5), (np.zeros((1, 2)), np.zeros((2, 1)), math.inf),
        (np.zeros(0), np.zeros(0), 0.0), ([np.zeros(2)], [np.ones(2)], 0.0), (None, np.ones(2), 0.0),
    ],
)  # fmt: skip
def test_the_error_of_an_output(actual: Any, expected: Any, error: float) -> None:
    """Relative, of floats; the share of other elements that differ; none of what is no tensor."""
    assert difference(actual, expected) == pytest.approx(error)


@pytest.mark.parametrize(
    ("x", "found"),
    [([3, -7], 7), ([-7, 3], 7), ([np.inf, 2, -5], 5), ([-np.inf, 2], 2), ([np.nan, 2], 2), ([np.nan, np.inf], 0)],
)
def test_the_largest_finite_magnitude(x: list[float], found: float) -> None:
    assert largest(np.array(x, np.float32)) == found


@pytest.mark.parametrize(("slow", "cases"), [(0, None), (1, 1), (2, 2)])
def test_the_first_case_has_four_times_the_time(monkeypatch: pytest.MonkeyPatch, slow: int, cases: int | None) -> None:
    """A later one that does not end in time is left out, with a note; without the first one nothing is known."""
    ahead, told = [0.0], list[str]()
    clock = types.SimpleNamespace(perf_counter=lambda: time.perf_counter() + ahead[0], thread_time=time.thread_time)
    for module in (sys.modules["onnxfuse.precision.measure"], reference):
        monkeypatch.setattr(module, "time", clock)

    def begin(text: str) -> None:
        told.append(text)
        ahead[0] += 390 if len(told) == 1 else 0
        ahead[0] += 20 if len(told) == slow + 1 else 0

    model = onnx.parser.parse_model(MODEL)
    nodes = plan.float_nodes(scopes.scopes_of(model), plan.opsets_of(model))
    feed = {"x": np.ones(4, np.float32)}

    def run() -> NodeStatistics:
        return measure(model, nodes, (HALF,), [feed, feed], 100.0 if slow != 2 else 500.0, begin)

    if cases is None:
        with pytest.raises(OutOfTime):
            run()
        return
    found = run()
    assert len(found.outputs) == cases
    assert found.note == ("" if cases == 2 else "1 of 2 cases in 100 s")
    assert told == ["measure 1 of 2", "measure 2 of 2"]


def test_a_function_may_call_its_nodes_as_the_graph_does() -> None:
    """Both are measured with their own attributes: of the call, and of the node."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
      g (float[2] x) => (float[2] r) { a = LeakyRelu <alpha = 1.0> (x) b = Neg (a) r = local.f <alpha = 0.5> (b) }
      <domain: "local", opset_import: ["" : 17]>
      f <alpha> (x) => (y) { a = LeakyRelu <alpha: float = @alpha> (x) b = Neg (a) y = Identity (b) }""")
    nodes = plan.float_nodes(scopes.scopes_of(model), plan.opsets_of(model))
    feed = {"x": np.array([2.0, 8.0], np.float32)}
    found = measure(model, nodes, (HALF,), [feed], 60.0, lambda text: None)
    assert [case["r"].tolist() for case in found.outputs] == [[1.0, 4.0]]
    assert {name: found.observed[name].error for name in "ab"} == {"a": {HALF: 0.0}, "b": {HALF: 0.0}}
