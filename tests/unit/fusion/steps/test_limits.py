"""What a kernel holds at most: at the limit growth ends with that reason, and what is there becomes one kernel."""

from types import ModuleType

import pytest

from onnxfuse.fusion.steps import joined_input, left_operand, movement, transposed_io
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.support.small import assert_same_numbers, ops, parse
from tests.unit.fusion.steps.test_joined_input import NARROW, net
from tests.unit.fusion.steps.test_left_operand import graph
from tests.unit.fusion.steps.test_transposed_io import HEADS

ALL = rule_file.shipped()
SWISH = graph("s = Sigmoid (x) f = Mul (x, s) m = MatMul (f, w) y = Add (m, b)")
GATED = graph("f = Mul (x, z) m = MatMul (f, w) y = Add (m, b)", inputs="float16[N,3,8] x, float16[N,3,8] z")
DOUBLED = GATED.replace("f = Mul (x, z)", "k = Constant <value = float16 {2}> () e = Mul (x, k) f = Mul (e, z)")
JOINED = net("x = Concat <axis = 3> (p, q)")
MOVED = """g (float[N,S,16] x) => (float[N,2,S,8] y) <int64[4] heads = {0, 0, 2, 8}> {
  a = Exp (x) r = Reshape (a, heads) t = Transpose <perm = [0, 2, 1, 3]> (r) y = Relu (t)
}"""
SCALED = JOINED.replace("y = Relu (m)", "k = Constant <value = float {2}> () n = Mul (m, k) y = Relu (n)")
CONV = "{Transpose Transpose Conv Transpose Relu}"


@pytest.mark.parametrize(
    ("step", "limit", "value", "text", "rules", "found", "told"),
    [
        (left_operand, "MAX_NODES", 4, SWISH, ALL, ["{Sigmoid Mul MatMul Add}"], ""),
        (left_operand, "MAX_NODES", 3, SWISH, ALL, ["Sigmoid", "{Mul MatMul Add}"], "holds 3 nodes already"),
        (left_operand, "MAX_INPUTS", 4, GATED, ALL, ["{Mul MatMul Add}"], ""),
        (left_operand, "MAX_INPUTS", 3, GATED, ALL, ["Mul", "{MatMul Add}"], "would read 4 tensors, at most 3"),
        (left_operand, "MAX_INPUTS", 4, DOUBLED, ALL, ["{Mul Mul MatMul Add}"], ""),
        (joined_input, "MAX_NODES", 6, JOINED, NARROW, [f"{{Concat {CONV[1:]}"], ""),
        (joined_input, "MAX_NODES", 5, JOINED, NARROW, ["Concat", CONV], "holds 5 nodes already"),
        (joined_input, "MAX_READ", 3, JOINED, NARROW, [f"{{Concat {CONV[1:]}"], ""),
        (joined_input, "MAX_READ", 3, SCALED, NARROW, [f"{{Concat {CONV[1:-5]}Mul Relu}}"], ""),
        (joined_input, "MAX_READ", 2, JOINED, NARROW, ["Concat", CONV], "would read 3 tensors, at most 2"),
        (movement, "MAX_NODES", 4, MOVED, ALL, ["{Exp Reshape Transpose Relu}"], ""),
        (movement, "MAX_NODES", 3, MOVED, ALL, ["Exp", "Reshape", "{Transpose Relu}"], "holds 3 nodes"),
        (transposed_io, "MAX_NODES", 4, HEADS, ALL, ["{MatMul Add Reshape Transpose}"], ""),
        (transposed_io, "MAX_NODES", 3, HEADS, ALL, ["{MatMul Add}", "Reshape", "Transpose"], "holds 3 nodes"),
    ],
)  # fmt: skip
def test_a_step_ends_at_its_limit(
    monkeypatch: pytest.MonkeyPatch,
    step: ModuleType,
    limit: str,
    value: int,
    text: str,
    rules: list[rule_file.Rule],
    found: list[str],
    told: str,
) -> None:
    """One below it the node is in the kernel; numbers stay the same."""
    monkeypatch.setattr(step, limit, value)
    model = parse(text)
    report = pipeline.run(model, rules)
    assert ops(model) == found
    stops = [stop.cause.seen for one in report.applied for stop in one.stops]
    reasons = [*stops, *(near.refusal.reason for near in report.near)]
    assert any(told in reason for reason in reasons) if told else not any("at most" in reason for reason in reasons)
    assert_same_numbers(parse(text), model)
