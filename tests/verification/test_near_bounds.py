"""A bound or a shift beyond the usual numbers, behind which a function saturates, is seen by default."""

import onnx
import pytest

from onnxfuse.verification import verify

CPU = ["CPUExecutionProvider"]

PAIRS = {
    "shift before Sigmoid": (17, "s = Constant <value = float {5000}> () a = Sub(x, s) y = Sigmoid(a)", "5000", "5001"),
    "shift before Tanh": (17, "s = Constant <value = float {-70000}> () a = Add(x, s) y = Tanh(a)", "70000", "70002"),
    "upper bound": (17, "low = Constant <value = float {-1}> () top = Constant <value = float {2000}> () "
                    "s = Constant <value = float {1998}> () c = Clip(x, low, top) a = Sub(c, s) y = Sigmoid(a)",
                    "{2000}", "{1999}"),
    "lower bound of opset 6": (7, "c = Clip <min = -3000.0> (x) h = Constant <value = float {3000}> () "
                               "a = Add(c, h) y = Sigmoid(a)", "-3000.0", "-2998.0"),
    "Min before Softmax": (13, "top = Constant <value = float {4000}> () c = Min(x, top) y = Softmax <axis = 1> (c)",
                           "4000", "4002"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_large_constant_that_is_changed_is_seen(name: str) -> None:
    """Numbers near each large constant are run; the same file passes."""
    opset, nodes, right, other = PAIRS[name]
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[N, 64] x) => (float[N, 64] y) {{ {nodes} }}'
    assert right in text
    one, two = (onnx.parser.parse_model(t) for t in (text, text.replace(right, other, 1)))
    same, report = verify(one, one, providers=CPU), verify(one, two, providers=CPU)
    assert (same.ok, report.verdict) == (True, "mismatch")
    assert "bounds" in {c.name for c in same.cases} or any("near the constants" in line for line in same.not_run)


def test_a_bound_that_the_fused_model_alone_has_is_seen() -> None:
    """What clips before a function that saturates shows near the clip's own bound."""
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 64] x) => (float[N, 64] y) '
    plain = head + "{ s = Constant <value = float {5003}> () b = Sub(x, s) y = Sigmoid(b) }"
    wrong = plain.replace("b = Sub(x", "t = Constant <value = float {5000}> () c = Min(x, t) b = Sub(c")
    one, two = (onnx.parser.parse_model(t) for t in (plain, wrong))
    assert verify(one, two, providers=CPU).verdict == "mismatch"
