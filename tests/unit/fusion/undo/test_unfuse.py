"""Fused ops become the nodes that they replaced: all or some of them, in bodies too, under names that are free."""

import onnx
import pytest

import onnxfuse
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.support.errors import ModelError
from tests.support.small import assert_same_numbers, ops, parse

CHAIN = (
    "g (float[N,4] x) => (float[N,4] y, float[N,4] z) { a = Exp (x) y = Softmax (a) b = Neg (x) z = LogSoftmax (b) }"
)
NESTED = """g (float[N,4] x, bool c) => (float[N,4] y) {
  e = Exp (x)
  s = Softmax (e)
  y = If (c) <
    then_branch = t () => (float[N,4] a) { n = Neg (s) a = Softmax (n) },
    else_branch = f () => (float[N,4] b) { m = Tanh (s) b = LogSoftmax (m) }>
}"""


def every_op(model: onnx.ModelProto) -> list[str]:
    """Return the operators of the model and of the bodies of its Ifs."""
    inner = [a.g for n in model.graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [*ops(model), *(n.op_type for body in inner for n in body.node)]


def test_all_of_a_model_are_counted_and_gone_with_what_they_need() -> None:
    """Bodies, functions, and the operator set."""
    model = parse(NESTED)
    fused = onnxfuse.optimize(model)
    assert len(fused_ops(fused)) == 3
    undone = onnx.ModelProto.FromString(fused.SerializeToString())
    assert unfuse(undone) == 3
    assert sorted(every_op(undone)) == sorted(every_op(model))
    assert not undone.functions
    assert [opset.domain for opset in undone.opset_import] == [""]
    assert unfuse(undone) == 0
    onnx.checker.check_model(undone, full_check=True)
    assert_same_numbers(model, undone)


def test_some_are_chosen_by_their_first_output() -> None:
    """The others stay, with their functions."""
    fused = onnxfuse.optimize(parse(CHAIN))
    assert len(fused_ops(fused)) == 2
    assert unfuse(fused, {"nothing"}) == 0
    assert unfuse(fused, {"z"}) == 1
    assert sorted(n.op_type for n in fused.graph.node if n.domain != DOMAIN) == ["LogSoftmax", "Neg"]
    assert len(fused.functions) == len(fused_ops(fused)) == 1
    assert_same_numbers(parse(CHAIN), fused)


def test_names_that_are_taken_meanwhile_get_a_number() -> None:
    """Of values and of nodes: another tool may have used those that are free in a fused model."""
    fused = onnxfuse.optimize(parse("g (float[N,4] x) => (float[N,4] y) { a = Exp (x) y = Softmax (a) }"))
    for name in ("a", "a_1"):
        fused.graph.node.append(onnx.helper.make_node("Neg", ["x"], [name]))
    unfuse(fused)
    (exp,) = [n for n in fused.graph.node if n.op_type == "Exp"]
    assert list(exp.output) == ["a_2"]
    onnx.checker.check_model(fused, full_check=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda node, body: node.ClearField("metadata_props"), "does not say which nodes it replaced"),
        (lambda node, body: body.node.append(body.node[-1]), "is not its body's: 2 nodes"),
        (lambda node, body: body.node[0].input.append("v9"), "is not its body's: nothing of 'v9'"),
    ],
)  # fmt: skip
def test_an_op_that_another_tool_has_changed_is_told(change: object, told: str) -> None:
    """Rather than undone wrongly."""
    fused = onnxfuse.optimize(parse("g (float[N,4] x) => (float[N,4] y) { a = Exp (x) y = Softmax (a) }"))
    assert callable(change)
    change(fused.graph.node[0], fused.functions[0])
    with pytest.raises(ModelError, match=told):
        unfuse(fused)


@pytest.mark.parametrize("shared", [False, True])
def test_a_number_in_a_body_is_a_weight_again(shared: bool) -> None:
    """Once, under its name, whether another node still reads it or not."""
    output, node = (", float[N,4] z", "z = Pow (x, half)") if shared else ("", "")
    text = f"""g (float[N,4] x) => (float[N,4] y{output}) <float half = {{0.5}}> {{
      a = Mul (x, half) y = Softmax (a) {node}
    }}"""
    fused = onnxfuse.optimize(parse(text), only=["softmax"])
    assert len(fused_ops(fused)) == 1
    assert ("half" in {t.name for t in fused.graph.initializer}) == shared
    unfuse(fused)
    assert [t.name for t in fused.graph.initializer] == ["half"]
    onnx.checker.check_model(fused, full_check=True)
    assert_same_numbers(parse(text), fused)
