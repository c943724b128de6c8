"""No rule can take away what its replacement reads: a name that a pattern leaves free is a value from outside."""

import warnings
from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.rules.language import rule_file
from onnxfuse.support.errors import RuleError
from tests.support.small import assert_same_numbers, parse

MODELS = {
    "Mul(e, e) of an Expand": "g (float[12,4,7] x) => (float[12,4,7] y) <int64[3] s = {12, 1, 7}> "
    "{ r = Relu(x) e = Expand(r, s) y = Mul(e, e) }",
    "Sub(e, e)": "g (float[N,4,7] x) => (float[N,4,7] y) <int64[3] s = {1, 4, 7}> "
    "{ r = Relu(x) e = Expand(r, s) y = Sub(e, e) }",
    "Where(b, e, e)": "g (float[3,4] x, bool[3,4] b) => (float[3,4] y) <int64[2] s = {3, 4}> "
    "{ e = Expand(x, s) y = Where(b, e, e) }",
    "a Gram matrix": "g (float[2,4,8] x) => (float[2,4,4] y) <float k = {0.5}> "
    "{ m = Mul(x, k) t = Transpose <perm = [0, 2, 1]> (m) y = MatMul(m, t) }",
    "a Gram matrix from the left": "g (float[2,4,8] x) => (float[2,8,8] y) <float k = {0.5}> "
    "{ m = Div(x, k) t = Transpose <perm = [0, 2, 1]> (m) y = MatMul(t, m) }",
}


@pytest.mark.parametrize("name", MODELS)
def test_shipped_rules_leave_alone_what_reads_the_match_itself(name: str) -> None:
    """Nothing is blamed, nothing dangles, and what is computed stays the same."""
    model = parse(MODELS[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = onnxfuse.optimize(model)
    assert_same_numbers(model, made)


RULE = """summary = "s"
[[rewrite]]
from = '''(a, b) => (y) {{ n = Neg (a) y = Mul (n, b) }}'''
to = '''{to}'''
"""


def test_a_users_rule_does_not_either(tmp_path: Path) -> None:
    """Mul(Neg(a), b) at Mul(n, n): `b` would be what Neg computes; the reason is told, and elsewhere it applies."""
    (tmp_path / "mine.toml").write_text(RULE.format(to="(a, b) => (y) { m = Mul (a, b) y = Neg (m) }"))
    model = parse("g (float[N,4] x, float[N,4] z) => (float[N,4] y, float[N,4] w) "
                  "{ n = Neg(x) y = Mul(n, n) k = Neg(z) w = Mul(k, x) }")  # fmt: skip
    report = onnxfuse.explain(model, rules=[tmp_path])
    assert report.by_rule()["mine"] == 1
    reasons = [near.refusal.reason for near in report.attempts() if near.rule == "mine"]
    assert any("is computed by nodes that it replaces" in reason for reason in reasons), reasons
    assert_same_numbers(model, onnxfuse.optimize(model, rules=[tmp_path]))


def test_to_does_not_read_what_from_computes(tmp_path: Path) -> None:
    """The node that computes it is replaced: exit 2 with the line, as the file is read."""
    (tmp_path / "mine.toml").write_text(RULE.format(to="(n, b) => (y) { y = Mul (n, b) }"))
    with pytest.raises(RuleError, match=r"mine.toml:4: `to` reads 'n', which `from` computes") as error:
        rule_file.load(tmp_path)
    assert "Compute it in `to`, too" in f"{error.value.hint}"


def test_an_output_without_a_declared_shape_is_no_fault() -> None:
    """Inference tells the shape of the operator, and not that of the function in its place: no rule is to blame."""
    texts = [
        (21, "g (float[n,16,1,5] x, float[16] s, float[16] b) => (y) { r = Relu(x) "
             "y = GroupNormalization <num_groups = 4> (r, s, b) }"),
        (13, "g (float[a,b,c] x) => (y) <int64 i = {0}, int64[1] z = {0}, int64[1] m = {-1}> { r = Relu(x) "
             "h = Shape(r) g = Gather(h, i) u = Unsqueeze(g, z) t = Concat <axis = 0> (u, m) f = Reshape(r, t) "
             "q = Sigmoid(f) y = Mul(f, q) }"),
    ]  # fmt: skip
    for opset, text in texts:
        model = parse(text.replace("=> (y)", "=> (float y)"), opset)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = onnxfuse.optimize(model)
        assert [n.domain for n in made.graph.node].count("onnxfuse") == 1
        assert not made.graph.output[0].type.tensor_type.HasField("shape")


def test_a_split_of_more_parts_than_a_body_may_have_stays() -> None:
    """A fused op of it could not be read from a file: it is not made, and nobody is blamed."""
    parts = [f"o{i}" for i in range(300)]
    nodes = [
        onnx.helper.make_node("Split", ["x"], parts, axis=1, num_outputs=300),
        onnx.helper.make_node("Relu", ["o0"], ["y"]),
    ]
    types = [onnx.helper.make_tensor_value_info(v, 1, ["n", d]) for v, d in (("x", 300), ("y", 1))]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", types[:1], types[1:]),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
        ir_version=8,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = onnxfuse.optimize(model)
    assert_same_numbers(model, made)
