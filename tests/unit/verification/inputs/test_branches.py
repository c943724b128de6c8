"""Branches that made-up inputs do not enter by chance are reached, or named in the verdict."""

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxfuse.verification import verify
from onnxfuse.verification.localize.bisect import investigate

CPU = ["CPUExecutionProvider"]
HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def at_rates(factor: float = 1.0, *, rate: int = 16000) -> ModelProto:
    """One weight where the rate is that number, and another one elsewhere, which the factor scales."""
    return onnx.parser.parse_model(
        f"""{HEAD} g (float[n, 4] x, int64 sr) => (float[n, 4] y)
        <int64 rate = {{{rate}}}, float[4] w = {{1, 2, 3, 4}}, float[1] v = {{{5 * factor}}}> {{
        is = Equal (sr, rate)
        [select] y = If (is) <then_branch = t () => (float[n, 4] a) {{ a = Mul (x, v) }},
                              else_branch = e () => (float[n, 4] b) {{ b = Mul (x, w) }}> }}"""
    )


def test_a_branch_behind_a_sampling_rate_is_entered() -> None:
    """No random number is 16000: the constant that the model compares with is tried. A weight x 1.5 there is found."""
    assert verify(at_rates(), at_rates(), providers=CPU).never_ran == ()
    report = verify(at_rates(), at_rates(1.5), providers=CPU)
    assert not report.ok
    (wrong,) = {report.cases[r.case].name for r in report.rows if r.verdict == "mismatch"}
    assert wrong == "branch"
    found = investigate(at_rates(), at_rates(1.5), report).bisection
    assert found is not None
    assert found.output == "y"


def test_a_branch_that_wants_more_gets_it() -> None:
    """The branch of 16000 has a window of 600 samples, and the other takes any: the sizes are searched for it alone."""

    def windows(scale: float) -> ModelProto:
        model = onnx.parser.parse_model(
            f"""{HEAD} g (float[b, 1, n] x, int64 sr) => (float[b, c] y) <int64 rate = {{16000}}> {{
            is = Equal (sr, rate)
            [select] y = If (is) <
              then_branch = t () => (float[b, k] a) {{ q = Conv (x, w)  a = ReduceMax <axes = [2], keepdims = 0> (q) }},
              else_branch = e () => (float[b, l] d) {{ d = ReduceMean <axes = [2], keepdims = 0> (x) }}> }}"""
        )
        weight = np.full((2, 1, 600), scale, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        return model

    report = verify(windows(1.0), windows(1.0), providers=CPU)
    assert report.ok
    assert report.never_ran == ()
    assert [c.shapes["x"] for c in report.cases if c.name == "branch"] == [(1, 1, 600)]
    assert not verify(windows(1.0), windows(1.5), providers=CPU).ok


def test_a_branch_that_nothing_enters_is_named() -> None:
    """Real inputs are as they are, and what they leave out stands in the verdict."""
    inputs = {"x": np.ones((1, 4), np.float32), "sr": np.array(8000)}
    report = verify(at_rates(), at_rates(1.5), inputs=inputs, providers=CPU)
    assert report.ok
    assert report.never_ran == ("then_branch of If 'select' (1 node)",)
    assert report.summary.endswith("1 case; never ran: then_branch of If 'select' (1 node)")
    assert report.as_dict()["never_ran"] == ["then_branch of If 'select' (1 node)"]


@pytest.mark.parametrize(("factor", "ok"), [(1.0, True), (1.5, False)])
def test_a_branch_within_a_loop_that_takes_turns(factor: float, ok: bool) -> None:
    """The turns are an input, and in the third one another branch runs."""

    def looping(scale: float) -> ModelProto:
        return onnx.parser.parse_model(
            f"""{HEAD} g (float[n, 4] x, int64 turns) => (float[n, 4] y)
            <float w = {{{scale}}}, int64 third = {{2}}, bool on = {{1}}> {{
            y = Loop (turns, on, x) <body = b (int64 i, bool c, float[n, 4] h) => (bool d, float[n, 4] o) {{
              d = Identity (c)  late = Equal (i, third)
              o = If (late) <then_branch = t () => (float[n, 4] p) {{ p = Mul (h, w) }},
                             else_branch = e () => (float[n, 4] q) {{ q = Relu (h) }}> }}> }}"""
        )

    report = verify(looping(0.5), looping(0.5 * factor), providers=CPU)
    assert report.never_ran == ()
    assert report.ok == ok


def test_a_branch_behind_the_data_is_entered() -> None:
    """Where no selector decides, data of one sign do."""

    def guarded(scale: float) -> ModelProto:
        return onnx.parser.parse_model(
            f"""{HEAD} g (float[n, 4] x) => (float[n, 4] y) <float w = {{{scale}}}, float none = {{0}}> {{
            least = ReduceMin <keepdims = 0> (x)  fine = Greater (least, none)
            y = If (fine) <then_branch = t () => (float[n, 4] p) {{ p = Mul (x, w) }},
                           else_branch = e () => (float[n, 4] q) {{ q = Relu (x) }}> }}"""
        )

    assert verify(guarded(2.0), guarded(2.0), providers=CPU, shapes={"n": [40]}).never_ran == ()
    assert not verify(guarded(2.0), guarded(3.0), providers=CPU, shapes={"n": [40]}).ok
