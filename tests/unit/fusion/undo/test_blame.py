"""A model of ours that is not valid is our fault: the rule is named, what it would have changed is left alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse.fusion.region import make_op
from onnxfuse.graph.graph import Node
from onnxfuse.model.fused import DOMAIN, FusedOp
from onnxfuse.passes import phases, pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.runtime.sessions.opening import refusal
from onnxfuse.support.errors import ModelError, RuleError
from tests.support.small import assert_same_numbers, ops, parse

TEXT = """g (float[N,4] x) => (float[N,4] y, float[N,4] z) {
  a = Exp (x) b = Relu (a) s = Softmax (b) y = Neg (s)
  c = Sinh (x) d = Softmax (c) z = Abs (d)
}"""

HALVES = """summary = "A type that does not fit."
[[rewrite]]
from = '''(x) => (y) { y = Sinh (x) }'''
to = '''(x) => (y) { h = Cast <to = 10> (x) y = Cosh (h) }'''
"""


def plant(monkeypatch: pytest.MonkeyPatch, fault: Callable[[onnx.FunctionProto], object]) -> None:
    """Let every fused op with an Abs in it have a fault in its body, as a mistake in the fuser would make one."""
    make = make_op._node

    def wrong(op: FusedOp, *parts: Any) -> Node:
        if any(n.op_type == "Abs" for n in op.body.node):
            fault(op.body)
        return make(op, *parts)

    monkeypatch.setattr(make_op, "_node", wrong)


def no_type(body: onnx.FunctionProto) -> None:
    """An operator that takes no floats."""
    next(n for n in body.node if n.op_type == "Abs").op_type = "Not"


def optimized(text: str, rules: tuple[rule_file.Rule, ...] = ()) -> tuple[onnx.ModelProto, OptimizeReport]:
    """Return the model as a command makes it, and the report."""
    made = parse(text)
    return made, pipeline.run(
        made, (*rule_file.by_default(rule_file.shipped()), *rules), opens=refusal, again=lambda: parse(text)
    )


def as_shipped(folder: Path, text: str) -> rule_file.Rule:
    """Return a rule as one of ours."""
    (folder / "halves.toml").write_text(text)
    (read,) = rule_file.load(folder)
    return replace(read, path=next(iter(rule_file.shipped_files().values())))


def test_a_function_of_the_files_own_is_no_op_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in our domain that says of no rule, and that nothing calls: another tool's, which is not to blame."""
    plant(monkeypatch, no_type)
    made = parse(TEXT)
    strange = onnx.helper.make_function(DOMAIN, "Strange", ["a"], ["b"], [onnx.helper.make_node("Abs", ["a"], ["b"])],
                                        [onnx.helper.make_opsetid("", 17)])  # fmt: skip
    made.functions.append(strange)
    report = pipeline.run(made, opens=refusal, again=lambda: parse(TEXT))
    assert any("the rule 'softmax' made" in note for note in report.notes)


def test_a_body_that_does_not_give_the_nodes_back_costs_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it stands for is not known any more: the model is made again without the rule."""
    plant(monkeypatch, no_type)
    made, report = optimized(TEXT)
    assert refusal(made) is None
    assert ops(made) == ["{Exp Relu}", "Softmax", "Neg", "Sinh", "Softmax", "Abs"]
    (note,) = report.notes
    assert "the rule 'softmax' made a model that is not valid" in note
    assert_same_numbers(parse(TEXT), made)


def test_what_no_rule_is_to_blame_for_comes_out_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake beside the rules: nothing is done, and that is said."""
    monkeypatch.setattr(phases, "attach", lambda model, ops: model.graph.node.add(op_type="Abs", output=["w"]))
    made, report = optimized(TEXT)
    assert ops(made) == [n.op_type for n in parse(TEXT).graph.node]
    (note,) = report.notes
    assert "no rule is to blame: it is left unchanged. If ONNX Runtime does not run the original either" in note
    assert report.after == report.before
    assert not report.applied


def test_without_a_way_to_begin_anew_it_is_an_error(tmp_path: Path) -> None:
    """Whoever gives the pipeline a model alone is told that the fault is ours."""
    with pytest.raises(ModelError, match="the optimized model is not valid") as told:
        pipeline.run(parse(TEXT), (as_shipped(tmp_path, HALVES),))
    assert "not the model's" in told.value.hint


def test_a_users_rule_is_an_error_with_its_file(tmp_path: Path) -> None:
    """Nothing is left out silently of what a user asked for."""
    own = replace(as_shipped(tmp_path, HALVES), path=tmp_path / "halves.toml")
    with pytest.raises(RuleError, match="the rule 'halves' changes the type of 'c'") as told:
        optimized(TEXT, (own,))
    assert str(tmp_path / "halves.toml") in str(told.value)
