"""A model is refused for random numbers where it draws some: a Dropout that drops nothing draws none."""

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxfuse
from onnxfuse.graph.randomness import random_node
from onnxfuse.support.errors import UsageError
from tests.support.small import run

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)


def model(body: str, opset: int = 17, weights: str = "", inputs: str = "", functions: str = "") -> onnx.ModelProto:
    """Return `x[N, 8], inputs -> y[N, 8]`, with functions of the domain l."""
    graph = f"g (float[N,8] x{inputs}) => (float[N,8] y) <{weights}> {{ {body} }}"
    imports = f'"": {opset}' + (', "l": 1' if functions else "")
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> {graph} {functions}")


DROP = "a = Relu(x) d = Dropout(a, r, t) y = Exp(d)"
HALF, FALSE, TRUE = "float r = {0.5}", "bool t = {0}", "bool t = {1}"
FUNCTION = (
    '<domain: "l", opset_import: ["": 17]> f (v, u) => (w) { r = Constant <value_float = 0.5> () w = Dropout(v, r, u) }'
)

INERT = {
    "opset 7": model("a = Relu(x) d = Dropout(a) y = Exp(d)", 7),
    "opset 10, of a ratio": model("a = Relu(x) d = Dropout <ratio = 0.7> (a) y = Exp(d)", 10),
    "opset 11, with a mask": model("a = Relu(x) d, m = Dropout <ratio = 0.7> (a) y = Exp(d)", 11),
    "opset 12, no mode": model("a = Relu(x) d = Dropout(a, r) y = Exp(d)", 12, HALF),
    "no inputs": model("a = Relu(x) d = Dropout(a) y = Exp(d)", 13),
    "mode left out": model('a = Relu(x) d = Dropout(a, r, "") y = Exp(d)'.replace('""', ""), 13, HALF),
    "initializer": model(DROP, 17, f"{HALF}, {FALSE}"),
    "opset 12, initializer": model(DROP, 12, f"{HALF}, {FALSE}"),
    "opset 22, initializer": model(DROP, 22, f"{HALF}, {FALSE}"),
    "Constant": model("t = Constant <value = bool {0}> () " + DROP, 17, HALF),
    "Identity of an initializer": model("t = Identity(u) " + DROP, 17, f"{HALF}, bool u = {{0}}"),
    "Identities of a Constant": model(
        "u = Constant <value = bool {0}> () v = Identity(u) t = Identity(v) " + DROP, 17, HALF
    ),
    "computed": model("u = Constant <value = bool {1}> () t = Not(u) " + DROP, 17, HALF),
    "cast": model("t = Cast <to = 9> (u) " + DROP, 17, f"{HALF}, int64 u = {{0}}"),
    "training, of no ratio": model(DROP, 17, f"float r = {{0}}, {TRUE}"),
    "in a branch, mode from outside": model(
        "c = Constant <value = bool {1}> () s = ReduceMax <keepdims = 0> (x) z = Constant <value_float = 0.0> () "
        "k = Greater(s, z) y = If (k) <then_branch = b () => (float[P,8] p) { p = Dropout(x, r, t) }, "
        "else_branch = e () => (float[Q,8] q) { q = Neg(x) }>", 17, f"{HALF}, {FALSE}",
    ),
    "in a function": model("a = Relu(x) d = l.f(a, t) y = Exp(d)", 17, FALSE, functions=FUNCTION),
}  # fmt: skip


@pytest.mark.parametrize("case", INERT)
def test_a_dropout_that_drops_nothing_is_verified(case: str) -> None:
    """Whatever says that it does not train: what is made of it is compared with the original, and is the same."""
    original = INERT[case]
    assert random_node(original) is None
    made = onnxfuse.optimize(original)
    np.testing.assert_allclose(run(made, {"x": X})[0], run(original, {"x": X})[0], rtol=1e-6)
    assert onnxfuse.verify(original, made, isolate=False).ok


@pytest.mark.parametrize("case", ["initializer", "Identity of an initializer", "in a function"])
def test_a_dropout_that_drops_nothing_is_guarded_and_lowered(case: str) -> None:
    """So it is for --guard, and for --precision."""
    for options in ({"guard": True}, {"precision": "float16"}):
        made = onnxfuse.optimize(INERT[case], **options)
        np.testing.assert_allclose(run(made, {"x": X})[0], run(INERT[case], {"x": X})[0], rtol=1e-2)


DRAWING = {
    "a Dropout in training": model(DROP, 17, f"{HALF}, {TRUE}"),
    "in training, of the default ratio": model("a = Relu(x) d = Dropout(a, , t) y = Exp(d)", 17, TRUE),
    "by an input": model(DROP, 17, HALF, ", bool t"),
    "by a default that a caller may replace": model(DROP, 17, f"{HALF}, {FALSE}", ", bool t"),
    "by what is computed": model("s = ReduceMax <keepdims = 0> (x) t = Cast <to = 9> (s) " + DROP, 17, HALF),
    "a normal distribution": model("n = RandomNormalLike(x) y = Add(x, n)"),
    "in a branch": model(
        "s = ReduceMax <keepdims = 0> (x) z = Constant <value_float = 0.0> () k = Greater(s, z) y = If (k) "
        "<then_branch = b () => (float[P,8] p) { p = RandomUniformLike(x) }, "
        "else_branch = e () => (float[Q,8] q) { q = Neg(x) }>"
    ),
    "in a function": model("y = l.f(x, t)", 17, TRUE, functions=FUNCTION),
}


@pytest.mark.parametrize("case", DRAWING)
def test_a_model_that_draws_random_numbers_is_refused(case: str) -> None:
    """A default is no constant, a body and a function are looked into, and what is not known may be true."""
    assert random_node(DRAWING[case]) is not None
    with pytest.raises(UsageError, match="draws random numbers"):
        onnxfuse.verify(DRAWING[case], DRAWING[case], isolate=False)
