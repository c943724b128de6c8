"""A call of a local function means the same whoever reads it: ONNX Runtime, the optimizer, the float64 truth."""

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import pytest

import onnxfuse
from onnxfuse.model.functions import bind_attributes
from onnxfuse.support.errors import ModelError
from onnxfuse.verification.reference.reference import float64_evaluator
from tests.support.small import run

X = np.linspace(-2, 1, 8, dtype=np.float32).reshape(2, 4)
LEAKY = "r = LeakyRelu <alpha: float = @a> (x)"


def leaky(slope: float) -> np.ndarray:
    """Return LeakyRelu of the input."""
    return np.where(X < 0, np.float32(slope) * X, X)


def softmax(axis: int) -> np.ndarray:
    """Return Softmax of the input."""
    return np.exp(X) / np.exp(X).sum(axis, keepdims=True)


def model(body: str, *functions: str) -> onnx.ModelProto:
    """Return `x[N, 4] -> y[N, 4]` over functions of the domain l."""
    heads = " ".join(f'<domain: "l", opset_import: ["": 19, "l": 1]> {f}' for f in functions)
    graph = f"g (float[N,4] x) => (float[N,4] y) {{ {body} }}"
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["l": 1, "": 19]> {graph} {heads}')


ATTRIBUTES = {
    "a default": (model("y = l.f(x)", f"f <a: float = 0.5> (x) => (r) {{ {LEAKY} }}"), leaky(0.5)),
    "a default that the call overrides": (
        model("y = l.f <a = 0.25> (x)", f"f <a: float = 0.5> (x) => (r) {{ {LEAKY} }}"),
        leaky(0.25),
    ),
    "no default, nothing given": (model("y = l.f(x)", f"f <a> (x) => (r) {{ {LEAKY} }}"), leaky(0.01)),
    "no default, given": (model("y = l.f <a = 0.5> (x)", f"f <a> (x) => (r) {{ {LEAKY} }}"), leaky(0.5)),
    "two calls, one with and one without": (
        model("p = l.f <a = 0.25> (x) q = l.f(x) y = Add(p, q)", f"f <a: float = 0.5> (x) => (r) {{ {LEAKY} }}"),
        leaky(0.25) + leaky(0.5),
    ),
    "an integer": (
        model("y = l.f(x)", "f <a: int = 0> (x) => (r) { r = Softmax <axis: int = @a> (x) }"),
        softmax(0),
    ),
    "integers": (
        model("y = l.f(x)", "f <a: ints = [1, 0]> (x) => (r) { t = Transpose <perm: ints = @a> (x) r = Transpose(t) }"),
        X,
    ),
    "a type to cast to": (
        model("y = l.f(x)", "f <a: int = 6> (x) => (r) { c = Cast <to: int = @a> (x) r = Cast <to = 1> (c) }"),
        np.trunc(X),
    ),
    "the number of a constant": (
        model("y = l.f(x)", "f <a: float = 0.5> (x) => (r) { c = Constant <value_float: float = @a> () r = Mul(c, x)}"),
        X / 2,
    ),
    "a tensor": (
        model(
            "y = l.f(x)",
            "f <a: tensor = float[4] {1, 2, 3, 4}> (x) => (r)"
            " { c = Constant <value: tensor = @a> () r = Mul(c, x) }",
        ),
        X * np.array([1, 2, 3, 4], np.float32),
    ),
    "handed on": (
        model(
            "y = l.f(x)",
            "f <a: float = 0.5> (x) => (r) { r = l.h <b: float = @a> (x) }",
            "h <b: float = 0.25> (x) => (r) { r = LeakyRelu <alpha: float = @b> (x) }",
        ),
        leaky(0.5),
    ),
    "handed on, nothing given": (
        model(
            "y = l.f(x)",
            "f <a> (x) => (r) { r = l.h <b: float = @a> (x) }",
            "h <b: float = 0.25> (x) => (r) { r = LeakyRelu <alpha: float = @b> (x) }",
        ),
        leaky(0.25),
    ),
    "in the branches of an If": (
        model(
            "y = l.f(x)",
            "f <a: float = 0.5> (x) => (r) { s = ReduceSum <keepdims = 0> (x) z = Constant <value_float = 0.0> () "
            "c = Less(s, z) r = If (c) <then_branch = t () => (float[N,4] p) { p = LeakyRelu <alpha: float = @a> (x) }"
            ", else_branch = e () => (float[N,4] q) { q = l.h <b: float = @a> (x) }> }",
            "h <b: float = 0.25> (x) => (r) { r = LeakyRelu <alpha: float = @b> (x) }",
        ),
        leaky(0.5),
    ),
    "in a branch of the main graph": (
        model(
            "s = ReduceSum <keepdims = 0> (x) z = Constant <value_float = 0.0> () c = Less(s, z) y = If (c) "
            "<then_branch = t () => (float[N,4] p) { p = l.f(x) }, "
            "else_branch = e () => (float[N,4] q) { q = Neg(x) }>",
            f"f <a: float = 0.5> (x) => (r) {{ {LEAKY} }}",
        ),
        leaky(0.5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_an_attribute_is_what_the_call_gives_else_the_default_else_the_operators_own(case: str) -> None:
    """ONNX Runtime, the optimized file and the float64 truth agree on it."""
    original, wanted = ATTRIBUTES[case]
    onnx.checker.check_model(original)
    before = original.SerializeToString(deterministic=True)
    made = onnxfuse.optimize(original)
    assert not [f for f in made.functions if f.domain == "l"]
    for computed in (run(original, {"x": X})[0], run(made, {"x": X})[0]):
        np.testing.assert_allclose(computed, wanted, atol=1e-6)
    (truth,) = float64_evaluator(original).run(None, {"x": X.astype(np.float64)})
    np.testing.assert_allclose(truth, wanted, atol=1e-6)
    assert original.SerializeToString(deterministic=True) == before, "the caller's model is left as it is"


def overloaded(body: str, calls: list[str], *functions: tuple[str, str]) -> onnx.ModelProto:
    """Return a model of functions (overload, text), whose calls in `l` have these overloads in their order."""
    made = model(body, *(text for _, text in functions))
    for function, (overload, _) in zip(made.functions, functions, strict=True):
        function.overload = overload
    nodes = [n for n in (*made.graph.node, *(n for f in made.functions for n in f.node)) if n.domain == "l"]
    for node, overload in zip(nodes, calls, strict=True):
        node.overload = overload
    return made


OVERLOADS = {
    "two of one name": (
        overloaded("a = l.f(x) y = l.f(a)", ["a", "b"], ("a", "f (x) => (r) { r = Neg(x) }"),
                   ("b", "f (x) => (r) { r = Exp(x) }")),
        np.exp(-X),
    ),
    "one of them without": (
        overloaded("a = l.f(x) y = l.f(a)", ["", "b"], ("", "f (x) => (r) { r = Neg(x) }"),
                   ("b", "f (x) => (r) { r = Exp(x) }")),
        np.exp(-X),
    ),
    "of other inputs": (
        overloaded("a = l.f(x) y = l.f(a, x)", ["one", "two"], ("one", "f (x) => (r) { r = Neg(x) }"),
                   ("two", "f (x, z) => (r) { r = Add(x, z) }")),
        X - X,
    ),
    "with defaults": (
        overloaded("p = l.f(x) q = l.f(x) y = Add(p, q)", ["", "b"],
                   ("", f"f <a: float = 0.5> (x) => (r) {{ {LEAKY} }}"),
                   ("b", f"f <a: float = 0.25> (x) => (r) {{ {LEAKY} }}")),
        leaky(0.5) + leaky(0.25),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OVERLOADS)
def test_functions_are_told_apart_by_overload(case: str) -> None:
    """Functions of one domain and name are two functions; ONNX Runtime, the file and the truth agree on each call."""
    original, wanted = OVERLOADS[case]
    onnx.checker.check_model(original)
    made = onnxfuse.optimize(original)
    for computed in (run(original, {"x": X})[0], run(made, {"x": X})[0]):
        np.testing.assert_allclose(computed, wanted, atol=1e-6)
    (truth,) = float64_evaluator(original).run(None, {"x": X.astype(np.float64)})
    np.testing.assert_allclose(truth, wanted, atol=1e-6)
    assert onnxfuse.verify(original, made, isolate=False).ok


def test_a_function_calls_the_overload_that_it_names() -> None:
    """That is what ONNX says; ONNX Runtime 1.31 takes a call inside a function for one without overload."""
    original = overloaded(
        "y = l.f(x)", ["a", "b"], ("a", "f (x) => (r) { q = l.h(x) r = Neg(q) }"),
        ("", "h (x) => (r) { r = Abs(x) }"), ("b", "h (x) => (r) { r = Exp(x) }"),
    )  # fmt: skip
    np.testing.assert_allclose(run(onnxfuse.optimize(original), {"x": X})[0], -np.exp(X), atol=1e-6)
    (truth,) = float64_evaluator(original).run(None, {"x": X.astype(np.float64)})
    np.testing.assert_allclose(truth, -np.exp(X), atol=1e-6)


def test_two_functions_of_one_overload_are_refused() -> None:
    """What tells functions apart is domain, name and overload; nobody knows which of two alike is called."""
    twice = overloaded("y = l.f(x)", ["a"], ("a", "f (x) => (r) { r = Neg(x) }"), ("a", "f (x) => (r) { r = Exp(x) }"))
    with pytest.raises(ModelError, match=r"the function l.f is defined twice"):
        onnxfuse.optimize(twice)


def test_a_function_that_calls_itself_is_refused() -> None:
    """It has no end, whether another function is between or not."""
    endless = model("y = l.f(x)", "f <a: float = 1.0> (x) => (r) { r = l.h(x) }", "h (x) => (r) { r = l.f(x) }")
    with pytest.raises(ModelError, match="calls itself"):
        bind_attributes(endless)


def test_functions_without_attributes_stay_as_they_are() -> None:
    """Only what onnx's own inliner does not know is written otherwise."""
    plain = model("y = l.f(x)", "f (x) => (r) { r = Neg(x) }")
    before = plain.SerializeToString(deterministic=True)
    bind_attributes(plain)
    assert plain.SerializeToString(deterministic=True) == before


def test_a_fused_op_has_no_overload() -> None:
    """A kernel is registered by name: which body it stands for would be open."""
    fused = onnxfuse.optimize(model("a = Relu(x) y = Exp(a)"))
    fused.functions[0].overload = "a"
    fused.graph.node[0].overload = "a"
    with pytest.raises(ModelError, match="has an overload"):
        onnxfuse.optimize(fused)
