"""What computes a product's left factor, for that product alone, becomes part of its kernel."""

import pytest

from onnxfuse.fusion.region.choices import Choices, Declined
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from tests.support.small import assert_same_numbers, ops, parse

WEIGHTS = "float16[8,8] w = {WEIGHT}, float16[8,8] v = {WEIGHT}, float16[8] b = {BIAS}".replace(
    "WEIGHT", ",".join(str(15360 + i % 13) for i in range(64))
).replace("BIAS", ",".join(["15488"] * 8))  # the bits of float16; 15360 is 1, 15488 is 1.125


def graph(nodes: str, outputs: str = "float16[N,3,8] y", inputs: str = "float16[N,3,8] x") -> str:
    return f'<ir_version: 8, opset_import: ["" : 20]> g ({inputs}) => ({outputs}) <{WEIGHTS}> {{ {nodes} }}'


def fused(text: str, choices: Choices | None = None) -> list[str]:
    """Return the operators that are left of a model whose numbers stay the same."""
    model, before = parse(text), parse(text)
    pipeline.run(model, choices=choices)
    assert_same_numbers(before, model)
    return ops(model)


@pytest.mark.parametrize(
    "nodes",
    [
        "s = Sigmoid (x) f = Mul (x, s) m = MatMul (f, w) y = Add (m, b)",  # one value, read in two ways
        "s = Mul (x, b) t = Add (s, b) f = Relu (t) y = MatMul (f, w)",  # a vector along the terms
        "f = Gelu (x) y = MatMul (f, w)",
    ],
)
def test_the_nodes_before_a_product_join_it(nodes: str) -> None:
    (one,) = fused(graph(nodes))
    assert one.count(" ") == nodes.count("=") - 1


def test_products_of_one_computed_factor_are_one_kernel() -> None:
    """It is computed once for both."""
    nodes = "f = Gelu (x) m = MatMul (f, w) y = Add (m, b) n = MatMul (f, v) z = Add (n, b)"
    assert fused(graph(nodes, "float16[N,3,8] y, float16[N,3,8] z")) == ["{Gelu MatMul Add MatMul Add}"]


def test_what_computes_a_vector_for_the_factor_stays() -> None:
    """It would be computed anew for each element; the vector may lie in any way that the kernel reads."""
    nodes = "e = Exp (r) f = Mul (x, e) y = MatMul (f, w)"
    for shape in ("N,3,1", "N,1,8", "8"):
        assert fused(graph(nodes, inputs=f"float16[N,3,8] x, float16[{shape}] r")) == ["Exp", "{Mul MatMul}"]


def test_what_follows_a_product_that_the_library_computes_may_join() -> None:
    """No kernel takes it for nothing."""
    weights = WEIGHTS + ", float16[6,8] u = {" + ",".join(["15360"] * 48) + "}"
    text = graph("m = MatMul (q, u) a = Add (m, b) f = Gelu (a) y = MatMul (f, w)", inputs="float16[N,3,6] q")
    assert fused(text.replace(WEIGHTS, weights)) == ["MatMul", "{Add Gelu MatMul}"]


def test_a_gate_of_each_image_is_computed_by_its_own_product() -> None:
    """Squeeze and excite: the gate follows a product, of another shape; the images times the gate do not."""
    nodes = "m = MatMul (q, v) a = Add (m, b) e = Sigmoid (a) f = Mul (x, e) y = MatMul (f, w)"
    inputs = "float16[N,3,8] x, float16[N,1,8] q"
    assert fused(graph(nodes, inputs=inputs)) == ["{MatMul Add Sigmoid}", "{Mul MatMul}"]


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        # Others read it: a residual, and a product of another kind of factor.
        ("f = Gelu (x) m = MatMul (f, w) y = Add (m, f)", ["Gelu", "{MatMul Add}"]),
        # It stands after a product, a norm, and both through more pointwise work.
        ("m = MatMul (x, v) f = Gelu (m) y = MatMul (f, w)", ["{MatMul Gelu}", "{MatMul}"]),
        ("m = MatMul (x, v) a = Add (m, b) f = Gelu (a) y = MatMul (f, w)", ["{MatMul Add Gelu}", "{MatMul}"]),
        ("p = Softmax (x) a = Mul (p, b) f = Relu (a) y = MatMul (f, w)", ["{Softmax Mul Relu}", "{MatMul}"]),
        # What it reads lies across the rows and terms.
        ("f = Mul (x, q) y = MatMul (f, w)", ["Mul", "{MatMul}"]),
    ],
)
def test_what_belongs_elsewhere_stays_there(nodes: str, left: list[str]) -> None:
    assert fused(graph(nodes, inputs="float16[4,3,8] x, float16[1,3,8] q")) == left


def test_many_columns_are_left_to_two_kernels_unless_measuring_decides() -> None:
    text = """<ir_version: 8, opset_import: ["" : 20]>
    g (float16[N,8] x, float16[8,16] w) => (float16[N,16] y) { f = Gelu (x) y = MatMul (f, w) }"""
    assert fused(text) == ["Gelu", "MatMul"]
    assert fused(text, Choices()) == ["{Gelu MatMul}"]


def test_a_product_that_measured_slower_so_keeps_its_own_kernel() -> None:
    """Declined with what stands before it, the product is offered without."""
    text = graph("f = Gelu (x) m = MatMul (f, w) y = Add (m, b)")
    (first,) = pipeline.run(parse(text), choices=Choices()).applied
    assert first.rule == "computed_factor"
    choices = Choices({(first.op, first.outputs): Declined("measured slower")})
    assert fused(text, choices) == ["Gelu", "{MatMul Add}"]


def test_the_portable_body_is_the_nodes() -> None:
    model = parse(graph("s = Sigmoid (x) f = Mul (x, s) m = MatMul (f, w) y = Add (m, b)"))
    pipeline.run(model)
    (op,) = fused_ops(model).values()
    assert [n.op_type for n in op.body.node] == ["Sigmoid", "Mul", "MatMul", "Add"]
