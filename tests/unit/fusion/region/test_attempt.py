"""An attempt to grow a region."""

import pytest

from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.hint import hint, without_names
from onnxfuse.rules.match.report import Near
from tests.support.small import optimize, parse

PRODUCT = "g ({0}) => ({1}) <float16[64,64] w = {{1" + ",0" * (64 * 64 - 1) + "}}, float16[64] scale = {{1"
PRODUCT += ",0" * 63 + "}}> {{ {2} }}"


def one_product(nodes: str, *rules: str, given: str = "float16[64,64] x", outputs: str = "float16[64,64] y") -> Near:
    """Return the refusal of the one product of a model."""
    _, report = optimize(parse(PRODUCT.format(given, outputs, nodes)), *rules)
    (near,) = [n for n in report.stopped if n.rule == "gemm"]
    return near


def test_what_is_too_little_is_counted_from_the_least_that_a_rule_wants() -> None:
    """The anchor, and the pointwise nodes without which its kernel saves nothing: one of two matched."""
    near = one_product("y = MatMul (x, w)", "gemm")
    assert "too little" in near.refusal.reason
    assert (near.refusal.depth, near.refusal.size) == (1, 2)


def test_a_neighbour_that_another_rule_took_is_named_with_the_rule() -> None:
    """The reader of the product in the original model, in the reason, in the hint, and in why an op grew no further."""
    nodes = "m = MatMul (x, w) [bias] a = Add (m, scale) s = Sigmoid (a) y = LayerNormalization (s, scale)"
    cause = one_product(nodes, "layer_norm", "gemm").refusal.cause
    assert "; bias: the Add beside it was fused into layer_norm (LayerNorm_" in cause.text
    assert hint(cause) == "nothing to do: the kernel of layer_norm computes the Add beside it"
    _, report = optimize(parse(PRODUCT.format("float16[64,64] x", "float16[64,64] y", nodes)))
    (product,) = [a for a in report.applied if a.nodes[0].startswith("MatMul")]
    (stop,) = product.stops
    assert stop.node == "bias"
    assert without_names(stop.reason) == "the Add beside it was fused into layer_norm"


def test_a_fused_op_before_the_region_is_named_by_its_last_node() -> None:
    """That computes what the region reads."""
    nodes = "n = LayerNormalization (x, scale) [last] s = Neg (n) a = Add (s, big) y = Exp (a)"
    text = PRODUCT.format("float16[64,64] x, float16[8,64,64] big", "float16[8,64,64] y", nodes)
    _, report = optimize(parse(text), "layer_norm", "pointwise")
    (stop,) = next(a.stops for a in report.applied if a.rule == "pointwise")
    assert stop.node == "last"
    assert stop.reason.startswith("the Neg beside it was fused into layer_norm (LayerNormalizationNeg_")


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("y = MatMul (x, w)", "there is no elementwise node next to it"),
        ("m = MatMul (x, w) y = Softmax (m)", "there is no elementwise node next to it"),
        # an elementwise node that cannot join is no missing one: the reason says why it cannot
        ("m = MatMul (x, w) y = Add (m, big)", ""),
    ],
)
def test_a_hint_says_that_nothing_is_next_to_it_only_where_nothing_is(nodes: str, told: str) -> None:
    near = one_product(nodes, "gemm", given="float16[64,64] x, float16[8,64,64] big", outputs="float16[?,?,?] y")
    assert hint(near.refusal.cause).startswith(told)
    assert bool(hint(near.refusal.cause)) == bool(told)


def test_what_only_moves_data_has_a_hint_of_its_own() -> None:
    """Also next to a fused op, which does not compute it."""
    text = "g (float[N,8] x) => (float[8,N] y) { a = Exp (x) b = Neg (a) t = Transpose (b) y = Hardmax (t) }"
    _, report = optimize(parse(text), "pointwise", "lone_movement")
    (near,) = [n for n in report.stopped if n.rule == "lone_movement"]
    assert "was fused into pointwise" in near.refusal.reason
    assert hint(near.refusal.cause).startswith("nothing is lost here")
    _, report = optimize(
        parse("g (float[N,8] x) => (float[8,N] y) { t = Transpose (x) y = Hardmax (t) }"), "lone_movement"
    )
    (near,) = report.stopped
    assert near.refusal.cause.kind == "too little"
    assert hint(near.refusal.cause) == "nothing is lost here: a kernel of its own would take as long as ONNX Runtime's"
    assert hint(Cause("too little", seen="for another reason")) == ""
