"""A file in lower precision beside its original: what runs it, on which inputs, and what is told of it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.model import precision_record
from onnxfuse.model.precision_record import PrecisionRecord
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.verification import VerifyReport, verify
from onnxfuse.verification.cases.limits import Limits
from onnxfuse.verification.compare import lower_precision_check
from onnxfuse.verification.compare.lower_precision_check import _largest, _late, _uses_type, as_declared, lower_run
from onnxfuse.verification.report.rows import LEFT_OUT, CaseRow
from tests.support.small import optimize, parse

CPU = ["CPUExecutionProvider"]
ORIGINAL = "g (float[N,8] x) => (float[N,8] y) { a = Tanh (x) y = Add (a, x) }"
HALF = "g (float16[N,8] x) => (float16[N,8] y) { a = Tanh (x) y = Add (a, x) }"


def lowered(text: str, precision: str = "float16", tolerance: float = 0.01) -> onnx.ModelProto:
    """Return a file that says that it is in lower precision."""
    model = parse(text)
    precision_record.write(model, PrecisionRecord(precision, tolerance, "random", "float64", 2))
    return model


def checked(text: str, original: str = ORIGINAL, **how: Any) -> VerifyReport:
    return verify(parse(original), lowered(text), providers=CPU, **how)


def test_an_output_is_held_to_the_contract_of_the_file() -> None:
    """By its error as a whole, relative to the truth."""
    report = checked(HALF)
    assert (report.ok, report.truth) == (True, "float64")
    assert report.contract is not None
    assert {row.dtype for row in report.rows} == {"float16"}
    assert all(row.contract is not None and 0 < row.contract.error < 1e-3 for row in report.rows)
    assert all(row.measure.scale > 0 and row.measure.difference.max_abs > 0 for row in report.rows)
    assert all(0 < each.seconds < 600 for each in report.cases)
    wrong = checked(HALF.replace("Tanh", "Sin"))
    assert not wrong.ok
    assert "allowed 0.01" in "\n".join(row.fault for row in wrong.rows)


@pytest.mark.parametrize(("type_", "by_rounding"), [("float16", False), ("bfloat16", True)])
def test_the_report_says_whether_a_session_ran(type_: str, by_rounding: bool) -> None:
    """With its fused ops, whose bodies run on the CPU: that no kernel was launched there is no fault."""
    model = lowered(HALF.replace("float16", type_), type_)
    made, applied = optimize(model, "pointwise")
    assert applied.applied
    report = verify(parse(ORIGINAL), made, providers=CPU)
    assert (report.ok, report.half, report.problems) == (True, by_rounding, ())
    assert bool(report.kernels) is not by_rounding


def test_inputs_of_the_user_are_the_cases() -> None:
    """And no others."""
    given = {"x": np.ones((2, 8), np.float32)}
    report = checked(HALF, inputs=[given, given])
    assert [(each.seed, each.shapes) for each in report.cases] == [(None, {"x": (2, 8)})] * 2
    assert {each.seed for each in checked(HALF, seeds=(3,)).cases} == {3}


def test_of_classes_the_best_is_compared() -> None:
    """Unless others are asked for."""
    text = "g (float16[N,8] x) => (float16[N,8] y) { a = MatMul (x, w) y = Softmax (a) }"
    original, file = parse(text.replace("float16", "float")), lowered(text)
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float16)
    original.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), "w"))
    file.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    for asked, told in ((None, ["1"]), ((1, 3), ["1", "3"])):
        report = verify(original, file, providers=CPU, top_k=asked)
        assert [*report.rows[0].measure.difference.agreement] == told


def test_another_interface_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_precision_check, "_plan", lambda *_: pytest.fail("ran"))
    report = checked(HALF.replace("] y)", "] z)").replace("y = Add", "z = Add"))
    assert not report.ok
    assert report.rows == ()
    assert report.problems


def test_a_file_that_fails_where_the_original_runs_is_wrong() -> None:
    """One that the original refuses too is no case; where it refuses all, nothing was compared."""
    fails = "g (float16[N,8] x) => (float16[N,8] y) <int64[2] s = {1, 8}> { a = Tanh (x) y = Reshape (a, s) }"
    report = checked(fails, shapes={"N": (3,)})
    assert not report.ok
    assert any("the fused model fails where the original runs" in problem for problem in report.problems)
    refusing = "g (float[N,8] x) => (float[N,8] y) <int64[2] s = {5, 7}> { a = Reshape (x, s) y = Reshape (a, s) }"
    with pytest.raises((UsageError, ModelError)):
        checked(refusing.replace("float[", "float16["), refusing, shapes={"N": (3,)})


def test_bfloat16_has_no_kernels_on_the_cpu_and_is_rounded_node_by_node(tmp_path: Path) -> None:
    """The report says so by having no session."""
    given = {"x": np.linspace(-2, 2, 16).reshape(2, 8).astype(np.float32)}
    for type_, own in (("float16", True), ("bfloat16", False)):
        model = lowered(HALF.replace("float16", type_), type_)
        run, session = lower_run(model, CPU, str(tmp_path))
        assert (session is not None) is own
        (y,) = run(as_declared(given, model)).values()
        rounded = y.astype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, type_.upper())))
        np.testing.assert_array_equal(rounded.astype(np.float64), y.astype(np.float64))
        np.testing.assert_allclose(y.astype(np.float64), np.tanh(given["x"]) + given["x"], rtol=0.01, atol=0.01)


def test_inputs_are_given_in_the_types_that_the_file_declares() -> None:
    """In lower precision alone: whole numbers, and what it keeps in float32, stay."""
    model = parse("g (float16[2] a, bfloat16[2] b, float[2] c, int64[2] d) => (float16[2] y) { y = Neg (a) }")
    given: dict[str, np.ndarray] = {name: np.array([1.0, 2.5], np.float32) for name in "abc"}
    given["d"] = np.array([1, 2])
    found = as_declared(given, model)
    assert [str(found[name].dtype) for name in "abcd"] == ["float16", "bfloat16", "float32", "int64"]
    assert found["c"] is given["c"]


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("g (bfloat16[2] x) => (float[2] y) { y = Cast <to = 1> (x) }", True),
        ("g (float[2] x) => (bfloat16[2] y) { y = Cast <to = 16> (x) }", True),
        ("g (float[2] x) => (float[2] y) { a = Cast <to = 16> (x) y = Cast <to = 1> (a) }", True),
        ("g (float[2] x) => (float[2] y) { a = Cast <to = 10> (x) y = Cast <to = 1> (a) }", False),
    ],
)
def test_a_type_is_used_where_it_is_declared_or_cast_to(text: str, used: bool) -> None:
    model = parse(text)
    assert _uses_type(model, TensorProto.BFLOAT16) is used
    weight = numpy_helper.from_array(np.ones(2, helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)), "w")
    model.graph.initializer.append(weight)
    assert _uses_type(model, TensorProto.BFLOAT16)


def test_cases_that_the_time_does_not_allow_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the first: as long as the slowest so far is what the next one takes."""
    spent = property(lambda limits: 7.0)
    monkeypatch.setattr(Limits, "spent", spent)
    ran = [CaseRow("a", 0, {}, 2.0, ""), CaseRow("b", 0, {}, 3.0, "")]
    assert _late([], Limits(5.0, 1)) == ""
    assert _late(ran, Limits(10.0, 1)) == ""
    late = Limits(9.5, 1)
    assert _late(ran, late) == f"{LEFT_OUT}{late.used_up}"


@pytest.mark.parametrize(
    ("values", "largest"),
    [([1.0, -3.0], 3.0), ([1.0, np.inf, np.nan], 1.0), ([np.nan], 0.0), ([], 0.0), (["a"], 0.0), ([True], 1.0)],
)
def test_the_scale_of_an_output_is_its_largest_finite_value(values: list[Any], largest: float) -> None:
    assert _largest(np.array(values)) == largest
