"""An output of which nothing was compared is undecided, and inputs are sought that give elements of it."""

import pickle

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.reporting.checks import checks, word
from onnxfuse.reporting.junit import junit
from onnxfuse.reporting.markdown import markdown
from onnxfuse.verification import verify
from onnxfuse.verification.inputs.branches import SIGNS
from tests.support.verification.small_models import text_model

CPU = ["CPUExecutionProvider"]


TWO = np.array(2, np.float32)
FORMS = {
    "scales of a Resize": (
        18, "g (float[1, 2, 6, 6] x, float[4] s) => (float[a, b, c, d] y) { z = Resize(x, , s) OUT }", {},
    ),
    "scales of a Resize 11": (
        11, "g (float[1, 2, 6, 6] x, float[4] s) => (float[a, b, c, d] y) { z = Resize(x, none, s) OUT }",
        {"none": np.zeros(0, np.float32)},
    ),
    "rows above a threshold": (
        18, "g (float[16, 4] x) => (float[n, 4] y) { m = ReduceMax <keepdims = 0> (x, one)  c = Greater(m, limit)"
        "  z = Compress <axis = 0> (x, c) OUT }", {"one": np.array([1]), "limit": np.array(50, np.float32)},
    ),
    "indices of NonZero": (
        18, "g (float[12] x) => (float[1, n] y) { c = Greater(x, limit)  i = NonZero(c)  z = Cast <to = 1> (i) OUT }",
        {"limit": np.array(300, np.float32)},
    ),
    "what equals an id": (
        18, "g (int64[12] x) => (float[1, n] y) { c = Equal(x, limit)  i = NonZero(c)  z = Cast <to = 1> (i) OUT }",
        {"limit": np.array([4711])},
    ),
    "boxes that are kept": (
        18, "g (float[1, 9, 4] boxes, float[1, 2, 9] scores, int64 most, float[1] least) => (float[n, 3] y) {"
        "  i = NonMaxSuppression(boxes, scores, most, iou, least)  z = Cast <to = 1> (i) OUT }",
        {"iou": np.array([0.5], np.float32)},
    ),
    "a range of inputs": (
        18, "g (int64 first, int64 last) => (float[n] y) { r = Range(first, last, step)  z = Cast <to = 1> (r) OUT }",
        {"step": np.array(1)},
    ),
    "a range up to a number without axes": (
        18, "g (float x) => (float[n] y) { c = Cast <to = 7> (x)  r = Range(hundred, c, one)"
        "  z = Cast <to = 1> (r) OUT }",
        {"hundred": np.array(100), "one": np.array(1)},
    ),
    "behind the hundredth": (
        18, "g (float[batch, length] x) => (float[batch, n] y) { z = Slice(x, from, to, axes) OUT }",
        {"from": np.array([2000]), "to": np.array([1 << 40]), "axes": np.array([1])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("sign", SIGNS)
def test_what_is_sought_passes_between_processes(sign: str) -> None:
    """A case is told to the process that waits, before it is run."""
    assert pickle.loads(pickle.dumps(SIGNS[sign])) is SIGNS[sign]


@pytest.mark.parametrize("form", FORMS)
def test_inputs_are_sought_that_give_elements(form: str) -> None:
    """A file that computes twice the output is found wrong, and the right one passes, where the usual inputs give
    an output without elements."""
    opset, text, weights = FORMS[form]
    weights, bodies = {**weights, "two": TWO}, ("y = Mul(z, two)", "t = Mul(z, two)  y = Mul(t, two)")
    original, twice = (text_model(text.replace("OUT", body), opset=opset, **weights) for body in bodies)
    wrong = verify(original, twice, providers=CPU)
    assert (wrong.ok, wrong.verdict) == (False, "mismatch"), wrong.summary
    right = verify(original, original, providers=CPU)
    assert right.ok, right.summary
    assert any(r.measure.elements for r in right.rows)


NEVER = "g (float[4] x) => (float[n] y) { s = Mul(x, zero)  c = Greater(s, one)  z = Compress(x, c) OUT }"


def never(out: str) -> onnx.ModelProto:
    """Return a model whose output never has an element."""
    return text_model(NEVER.replace("OUT", out), zero=np.zeros(1, np.float32), one=np.ones(1, np.float32), two=TWO)


@pytest.mark.parametrize("tolerance", [None, 1e-3])
def test_what_no_input_gives_is_undecided(tolerance: float | None) -> None:
    """Neither same nor wrong: exit 1, with what would decide it, in every form of the report, tolerances or not."""
    report = verify(never("y = Exp(z)"), never("t = Exp(z)  y = Mul(t, two)"), providers=CPU, rtol=tolerance)
    assert (report.verdict, report.ok, report.unverified) == ("undecided", False, ("y",))
    assert report.summary.startswith("not shown to be the same: y could not be judged")
    assert "nothing of y was compared: no case gave an element of it" in report.summary
    facts = report.as_dict()
    assert facts["outputs"][0]["verdict"] == facts["verdict"] == "undecided"
    assert word(facts) == "undecided"
    (check,) = checks("verify", facts)
    assert not check.ok
    assert check.text.startswith("undecided: ")
    assert "undecided" in junit([check])
    assert "onnxfuse verify: undecided" in markdown("verify", facts)


def test_nothing_but_nan_is_undecided_within_a_tolerance_too() -> None:
    """A NaN equals a NaN, and says nothing of the numbers."""
    nan = text_model("g (float[8] x) => (float[8] y) { z = Abs(x)  n = Neg(z)  o = Sub(n, two)  y = Sqrt(o) }", two=TWO)
    assert verify(nan, nan, providers=CPU, rtol=1e-3).verdict == "undecided"


def test_an_output_declared_without_elements_is_right() -> None:
    """There is nothing of it to compare, whatever goes in."""
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "end", "end"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [0])],
        [numpy_helper.from_array(np.array([4]), "end")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    report = verify(model, model, providers=CPU)
    assert report.ok, report.summary


def test_real_inputs_are_not_added_to() -> None:
    """Who gives inputs is told that they decide nothing."""
    x = {"x": np.ones(4, np.float32)}
    limit, text = (
        np.array(50, np.float32),
        "g (float[4] x) => (float[n] y) { c = Greater(x, limit)  y = Compress(x, c) }",
    )
    model = text_model(text, limit=limit)
    report = verify(model, model, providers=CPU, inputs=[x])
    assert (report.verdict, len(report.cases)) == ("undecided", 1)
    assert verify(model, model, providers=CPU, inputs=[x, {"x": np.full(4, 99, np.float32)}]).ok
