"""What is fused in the bodies of nodes: all in If, Loop and Scan, nothing where ONNX Runtime opens no function."""

import warnings

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.nested import nodes_of
from tests.support.small import parse, run

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
WEIGHTS = f"<float[4,4] w = {{{', '.join(str(n % 5 - 2) for n in range(16))}}}, float[4] c = {{1, 2, 3, 4}}>"


def mapped(body: str, beside: str = "y = Identity(z)", more: str = "") -> onnx.ModelProto:
    """Return `x[N, 4] -> y[M, 4]`, a SequenceMap over x and -x whose body is v -> w2 and may read `w` and `c`."""
    return parse(
        f"g (float[N,4] x) => (float[M,4] y) {WEIGHTS} {{ {more} m = Neg(x) s = SequenceConstruct(x, m) "
        f"t = SequenceMap <body = b (float[N,4] v) => (float[N,4] u) {{ {body} }}> (s) "
        f"z = ConcatFromSequence <axis = 0> (t) {beside} }}"
    )


MAPPED = {
    "elementwise": mapped("q = Relu(v) u = Exp(q)"),
    "a product": mapped("p = MatMul(v, w) q = Add(p, c) u = Relu(q)"),
    "Softmax": mapped("q = Mul(v, c) p = Softmax(q) u = Add(p, v)"),
    "outer values": mapped("q = Relu(v) p = Mul(q, o) u = Exp(p)", more="o = Sigmoid(c)"),
    "a branch inside": mapped(
        "k = ReduceMax <keepdims = 0> (v) n = Constant <value_float = 0.0> () l = Greater(k, n) "
        "u = If (l) <then_branch = h () => (float[N,4] a) { d = Relu(v) a = Exp(d) }, "
        "else_branch = e () => (float[N,4] f) { g = Neg(v) f = Exp(g) }>"
    ),
    "fused around it": mapped("q = Relu(v) u = Exp(q)", beside="r = Neg(z) r2 = Exp(r) y = Mul(r2, z)"),
    "in a Loop": parse(
        f"g (float[N,4] x) => (float[M,4] y) {WEIGHTS} {{ n = Constant <value_int = 2> () "
        "k = Constant <value = bool {1}> () "
        "y = Loop (n, k, x) <body = l (int64 i, bool d, float[A,4] x1) => (bool d2, float[B,4] x2) { d2 = Identity(d) "
        "m = Neg(x1) s = SequenceConstruct(x1, m) t = SequenceMap <body = b (float[N,4] v) => (float[N,4] u) "
        "{ q = Relu(v) u = Tanh(q) }> (s) z = ConcatFromSequence <axis = 0> (t) e = Mul(z, c) x2 = Tanh(e) }> }"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MAPPED)
def test_nothing_is_fused_where_functions_are_not_opened(case: str) -> None:
    """SequenceMap is a function of ONNX: what it holds is written in its place, and a function in there is not."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = onnxfuse.optimize(MAPPED[case])
    for node in (n for n in nodes_of(made.graph) if n.op_type == "SequenceMap"):
        assert not [n for a in node.attribute for n in nodes_of(a.g) if n.domain == DOMAIN]
    np.testing.assert_allclose(run(made, {"x": X})[0], run(MAPPED[case], {"x": X})[0], rtol=1e-5, atol=1e-6)
    assert onnxfuse.verify(MAPPED[case], made, isolate=False).ok


def test_what_stands_around_such_a_node_is_fused() -> None:
    """It is only the body that nothing is done in."""
    made = onnxfuse.optimize(MAPPED["fused around it"])
    assert [n.domain for n in made.graph.node if n.domain] == [DOMAIN]


def test_the_bodies_of_control_flow_are_fused() -> None:
    """ONNX Runtime opens functions in If, Loop and Scan, which are no functions themselves."""
    model = parse(
        "g (float[N,4] x) => (float[N,4] y) { k = ReduceMax <keepdims = 0> (x) n = Constant <value_float = 0.0> () "
        "l = Greater(k, n) y = If (l) <then_branch = h () => (float[N,4] a) { d = Relu(x) a = Exp(d) }, "
        "else_branch = e () => (float[N,4] f) { g = Neg(x) f = Exp(g) }> }"
    )
    made = onnxfuse.optimize(model)
    assert sum(n.domain == DOMAIN for n in nodes_of(made.graph)) == 2
