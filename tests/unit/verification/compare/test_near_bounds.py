"""A bound or a shift beyond the usual numbers, behind which a function saturates, is seen by default."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

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


COMPUTED = {
    "shift": ("a = Sub(h, s) y = Sigmoid(a)", "5000", "5001"),
    "bound": ("c = Min(h, s) r = Sub(c, t) y = Sigmoid(r)", "5000", "4999"),
    "comparison": ("g = Greater(h, s) y = Cast <to = 1> (g)", "5000", "5003"),
    "through Relu": ("q = Relu(h) a = Sub(q, s) y = Tanh(a)", "5000", "5001"),
    "behind a clip": ("q = Clip(h, z, s) a = Sub(q, t) y = Sigmoid(a)", "5000", "4999"),
}
LAYERS = {
    "one layer": "m = MatMul(x, w) h = Add(m, b)",
    "two": "k = MatMul(x, w) l = Relu(k) m = MatMul(l, w) h = Add(m, b)",
}


@pytest.mark.parametrize("rows", ["N", "1"])
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("name", COMPUTED)
def test_a_large_constant_behind_weights_that_is_changed_is_seen(name: str, layers: str, rows: str) -> None:
    """The inputs are scaled until the value that meets the constant is near it; the same file passes."""
    nodes, right, other = COMPUTED[name]
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((16, 16)).astype("f"), rng.standard_normal(16).astype("f")
    pair = []
    for number in (right, other):
        text = f"g (float[{rows}, 16] x) => (float[{rows}, 16] y) "
        text += f"<float s = {{{number}}}, float t = {{4998}}, float z = {{0}}>"
        one = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text} {{ {LAYERS[layers]} {nodes} }}')
        one.graph.initializer.extend([numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")])
        pair.append(one)
    assert verify(pair[0], pair[0], providers=CPU).ok
    assert verify(*pair, providers=CPU).verdict == "mismatch"


def test_a_value_that_no_scale_brings_near_its_constant_is_named() -> None:
    """A Sigmoid is at most 1."""
    one = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) <float s = {5000}> '
        "{ a = Sigmoid(x) y = Min(a, s) }"
    )
    report = verify(one, one, providers=CPU)
    assert "no values near the large constants that 'a' meets: no scale of the inputs gives them" in report.not_run
