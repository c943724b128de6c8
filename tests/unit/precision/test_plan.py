"""Which nodes can compute in a lower type, in which of their inputs and outputs, and why others cannot."""

import onnx
import pytest
from onnx import TensorProto

from onnxfuse.precision import plan, scopes
from onnxfuse.precision.plan import FloatNode, converted, float_values

HALF, BRAIN, FLOAT = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT
HEAD = '<ir_version: 9, opset_import: ["" : 17, "local" : 1]>'


def nodes_of(text: str) -> dict[str, FloatNode]:
    """Return the nodes of a model by their first output."""
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    return plan.float_nodes(scopes.scopes_of(model), plan.opsets_of(model))


def test_a_node_has_the_slots_that_its_schema_lets_change() -> None:
    """What gives integers or truth values reads the lower type alone; a shape and another type's cast are no floats."""
    found = nodes_of("""g (float[4,4] x, int64 k) => (int64[4] i, float[4,4] r, int64[2] s, bool[4,4] c, float[4,4] d,
      float[4,4] e, int64[4,4] z) <float[1] t = {1}> {
        i = ArgMax <axis = 1, keepdims = 0> (x)  r = Relu (x)  s = Shape (x)  c = Greater (x, t)  d = CumSum (x, k)
        e = Einsum <equation = "ij->ij"> (x)  z = Cast <to = 7> (x)
      }""")
    assert {name: node.types.get(HALF) for name, node in found.items()} == {
        "i": ((0,), ()), "r": ((0,), (0,)), "c": ((0, 1), ()), "d": ((0,), (0,)), "e": ((0,), (0,)),
    }  # fmt: skip
    assert {name for name, node in found.items() if BRAIN in node.types} == {"i", "r", "c", "d"}
    assert not any(node.why for node in found.values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("g () => (float[2] y) { y = RandomNormal <shape = [2]> () }", "draws random numbers"),
        ("g (float[2] x) => (float[2] y) { y = local.Mine (x) }", "has no form for lower precision"),
        ("g (float[2] x) => (float[2] y) { u = local.Mine (x) y = Relu (u) }", "reads or gives a value of unknown"),
        ("g (float[2] x, bool c) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] a) { a = Relu (x) }, "
         "else_branch = e () => (float[2] b) { b = Neg (x) }> }", "values keep their types on the way into its body"),
        ("g (float[2] x, float[2] k) => (float[a,b] y) { i = Cast <to = 7> (k) y = Reshape (x, i) z = Neg (k) }", ""),
        ("g (float[2] x, float[2] k) => (float[a,b] y) { z = Neg (k) i = Cast <to = 7> (z) y = Reshape (x, i) }",
         "controls a shape, a trip count or a branch"),
    ],
)  # fmt: skip
def test_a_node_that_stays_says_why(text: str, why: str) -> None:
    """Of its operator, of the types around it, or of what is decided by its values."""
    reasons = [node.why for node in nodes_of(text).values()]
    assert any(reason.startswith(why) for reason in reasons) if why else not any(reasons)


@pytest.mark.parametrize(
    ("mode", "weights", "random"),
    [("", "<bool m = {1}>", True), ("", "<bool m = {0}>", False), (", bool m", "", True)],
)
def test_a_dropout_draws_where_it_may_train(mode: str, weights: str, random: bool) -> None:
    """By a constant that says so, or by what is known as it runs."""
    found = nodes_of(f"g (float[4] x, float r{mode}) => (float[4] y) {weights} {{ y = Dropout (x, r, m) }}")
    assert (found["y"].why == "draws random numbers") == random


@pytest.mark.parametrize(("rows", "stays"), [(100, True), (101, False)])
def test_only_what_is_small_may_be_a_computed_shape(rows: int, stays: bool) -> None:
    """ONNX Runtime's limit, too."""
    found = nodes_of(f"""g (float[4] x, float[{rows}] k) => (float[4] y) {{
      z = Neg (k)  i = Cast <to = 7> (z)  m = ReduceMax <keepdims = 1> (i)  y = Expand (x, m) }}""")
    assert bool(found["z"].why) == stays


def test_nodes_take_the_lower_type_or_what_they_are_pinned_to() -> None:
    """A type that a node does not have is float32."""
    found = nodes_of("""g (float[4,4] x) => (float[4,4] y) { r = Relu (x) e = Einsum <equation = "ij->ij"> (r)
      y = Neg (e) }""")
    assert converted(found, {}, HALF) == {"r": HALF, "e": HALF, "y": HALF}
    assert converted(found, {"r": FLOAT}, BRAIN) == {"r": FLOAT, "e": FLOAT, "y": BRAIN}
    assert converted(found, {"e": BRAIN, "y": BRAIN}, HALF) == {"r": HALF, "e": FLOAT, "y": BRAIN}


def test_the_floats_of_a_node_are_those_outputs_that_it_has() -> None:
    """Integers are none, nor is an output without a name."""
    found = nodes_of("g (float[8] x) => (int64[2] i, float[8] y) <int64[1] k = {2}> { , i = TopK (x, k) y = Neg (x) }")
    assert {name: [*float_values(node)] for name, node in found.items()} == {"i": [], "y": ["y"]}
