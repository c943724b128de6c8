"""A rewrite that makes an invalid model is left out, a fused op that is not valid is undone."""

from pathlib import Path

import onnx
import pytest

from onnxfuse.graph.validity import complaint
from onnxfuse.model.fused import DOMAIN
from onnxfuse.runtime.sessions.opening import refusal
from tests.support.small import assert_same_numbers, ops, parse
from tests.unit.fusion.undo.test_blame import HALVES, TEXT, as_shipped, optimized, plant


def no_opset(body: onnx.FunctionProto) -> None:
    """An operator set that has no Softmax of this kind."""
    body.opset_import[0].version = 1000


def test_a_fused_op_that_is_not_valid_is_undone_and_its_rule_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes of that place are back, all others are fused, and a note asks for a report."""
    plant(monkeypatch, no_opset)
    made, report = optimized(TEXT)
    assert complaint(made) is None
    assert refusal(made) is None
    assert ops(made) == ["{Exp Relu Softmax Neg}", "Sinh", "Softmax", "Abs"]
    (note,) = report.notes
    assert "the rule 'softmax' made an op that is not valid, Softmax_SinhSoftmaxAbs_" in note
    assert "please report it: the fault is onnxfuse's, not the model's" in note
    assert_same_numbers(parse(TEXT), made)
    assert {a.op for a in report.applied} == {n.op_type for n in made.graph.node if n.domain == DOMAIN}


def test_a_rewrite_that_makes_an_invalid_model_is_left_out(tmp_path: Path) -> None:
    """It has no way back: the model is made again without that rule, all others apply."""
    made, report = optimized(TEXT, (as_shipped(tmp_path, HALVES),))
    assert complaint(made) is None
    (note,) = report.notes
    assert "the rule 'halves' made a model that is not valid" in note
    plain, _ = optimized(TEXT)
    assert made.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)
