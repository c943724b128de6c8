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


OWN = 'y = own.f (x, w, b, s) }} <domain: "own", opset_import: ["" : 17]> f (x, w, b, s) => (y) {{ {nodes} }}'
SHIFTED = "m = MatMul (x, w) h = Add (m, b) a = Sub (h, s) {y} = Sigmoid (a)"
INSIDE = {
    "a function": OWN.format(nodes=SHIFTED.format(y="y")),
    "a constant of a function": "m = MatMul (x, w) h = Add (m, b) y = own.f (h) } "
    '<domain: "own", opset_import: ["" : 17]> f (h) => (y) { s = Constant <value = float {5000}> () a = Sub (h, s) '
    "y = Sigmoid (a) }",
    "a branch": "t = ReduceMax <keepdims = 0> (x) c = Greater (t, z) y = If (c) <"
    f"then_branch = a () => (float[N, 16] p) {{ {SHIFTED.format(y='p')} }}, "
    "else_branch = e () => (float[N, 16] q) { q = Identity (x) }> }",
    "a branch of a branch": "t = ReduceMax <keepdims = 0> (x) c = Greater (t, z) y = If (c) <"
    "then_branch = a () => (float[N, 16] p) { k = Abs (x) p = If (c) <"
    f"then_branch = d () => (float[N, 16] o) {{ {SHIFTED.replace('(x', '(k').format(y='o')} }}, "
    "else_branch = f () => (float[N, 16] r) { r = Identity (x) }> }, "
    "else_branch = e () => (float[N, 16] q) { q = Identity (x) }> }",
    "a loop": "v, y = Loop (n, go, x) <body = l (int64 i, bool ci, float[N, 16] x2) => "
    "(bool co, float[N, 16] u, float[N, 16] r) { co = Identity (ci) u = Identity (x2) "
    f"{SHIFTED.replace('(x', '(x2').format(y='r')} }}> }}",
    "a scan": "y = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = l (float[16] x2) => (float[16] r) "
    f"{{ {SHIFTED.replace('(x', '(x2').format(y='r')} }}> (x) }}",
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_large_constant_inside_a_body_that_is_changed_is_seen(name: str) -> None:
    """In functions, branches and loops, where no value is an output."""
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((16, 16)).astype("f"), rng.standard_normal(16).astype("f")
    rank = "A, N, 16" if name == "a loop" else "N, 16"
    text = f'<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[N, 16] x) => (float[{rank}] y) '
    text += "<float s = {5000}, float z = {0}, int64 n = {2}, bool go = {1}> { "
    pair = [onnx.parser.parse_model(f"{text}{INSIDE[name]}".replace("5000", number)) for number in ("5000", "5001")]
    for one in pair:
        one.graph.initializer.extend([numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")])
    assert verify(pair[0], pair[0], providers=CPU).ok
    assert verify(*pair, providers=CPU).verdict == "mismatch"


def test_what_fails_where_its_branch_is_not_taken_tells_nothing_of_others() -> None:
    """A branch that never is, whose Reshape does not fit; the model that is given stays as it was."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 16] x) => (float[N, 16] y, float[N, 16] o)
      <float s = {5000}, int64[2] four = {-1, 7}> {
        big = ReduceMax <keepdims = 0> (x) c = Greater (big, big) h = Neg (x) a = Sub (h, s) o = Sigmoid (a)
        y = If (c) <then_branch = t () => (float[N, 16] p) {
            r = Reshape (x, four) d = Sub (r, s) e = Sigmoid (d) f = ReduceMax <keepdims = 0> (e) p = Add (x, f) },
          else_branch = u () => (float[N, 16] q) { q = Identity (x) }>
      }"""
    one, two = (onnx.parser.parse_model(t) for t in (text, text.replace("5000", "5001")))
    before = one.SerializeToString()
    report = verify(one, one, providers=CPU)
    assert report.ok
    assert one.SerializeToString() == before
    assert any("'r in y' meets: " in line for line in report.not_run), report.not_run
    assert verify(one, two, providers=CPU).verdict == "mismatch"


def test_a_value_that_no_scale_brings_near_its_constant_is_named() -> None:
    """A Sigmoid is at most 1."""
    one = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) <float s = {5000}> '
        "{ a = Sigmoid(x) y = Min(a, s) }"
    )
    report = verify(one, one, providers=CPU)
    assert "no values near the large constants that 'a' meets: no scale of the inputs gives them" in report.not_run
