"""A custom rule that matches alone but not among others: which rule took its nodes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.api.request.origin import Origin
from onnxfuse.explanation.rule_conflicts import RuleConflict, rule_conflicts
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.support.progress import silent
from tests.support.small import parse

MODEL = parse("g (float[4] x) => (float[4] z) { [r] a = Relu (x) [t] y = Tanh (a) [n] z = Neg (y) }")


@pytest.fixture
def rules(tmp_path: Path) -> tuple[Rule, ...]:
    """Return two rules for Tanh, of which `b` goes first, and one for Neg."""
    sides = "".join(f'{side} = "(x) => (y) {{{{ y = {{}} (x) }}}}"\n' for side in ("from", "to"))
    text = f'summary = "x."\npriority = {{}}\n[[rewrite]]\n{sides}'
    for name, more in {"a": (0, "Tanh", "Erf"), "b": (2, "Tanh", "Sigmoid"), "c": (0, "Neg", "Abs")}.items():
        (tmp_path / f"{name}.toml").write_text(text.format(*more))
    return tuple(sorted(rule_file.load(tmp_path), key=lambda r: r.name))


def conflicts(rules: tuple[Rule, ...], **more: Any) -> list[RuleConflict]:
    """Return the conflicts in the model."""
    pipeline = OptimizePipeline(Origin(MODEL), **more)
    report = pipeline.run(pipeline.origin.fresh(), rules, silent)
    return rule_conflicts(report, rules, pipeline, silent)


def test_the_rule_that_was_first_is_named(rules: tuple[Rule, ...]) -> None:
    """With the reason; a rule that applied is in no conflict."""
    (found,) = conflicts(rules)
    assert (found.rule, found.by, found.nodes) == ("a", "b", ("Tanh t",))
    assert found.why == "b was first: its priority is 2, that of a 0; priority = 3 in a.toml lets a go first"


def test_a_rule_alone_or_a_shipped_one_is_in_none(rules: tuple[Rule, ...]) -> None:
    """Nor are two that take other nodes."""
    assert conflicts(rules[:1]) == []
    assert conflicts((rules[0], rules[2])) == []
    shipped = rule_file.shipped()
    as_shipped = tuple(replace(r, path=s.path) for r, s in zip(rules, shipped, strict=False))
    assert conflicts(as_shipped) == []
