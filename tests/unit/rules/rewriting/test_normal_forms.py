"""A normal form is a rule file that the pipeline applies as a pass: it keeps what its examples promise."""

import pytest

import onnxfuse
from onnxfuse.passes.phases import PIPELINE
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.language.rule_file import Example
from onnxfuse.rules.match.match import Refusal
from onnxfuse.rules.rewriting.rewrite import find
from tests.support.small import assert_same_numbers, graph_of, ops, parse

EXAMPLES = [(name, example) for name, rule in rule_file.forms().items() for example in rule.examples]


@pytest.mark.parametrize("name", rule_file.forms())
def test_a_form_is_a_pass_of_its_name(name: str) -> None:
    """The pipeline lists it with the sentence of its file, and no rule has that name."""
    listed = {one.name: one.summary for phase in PIPELINE for one, _ in phase.listed()}
    assert listed[name] == rule_file.forms()[name].summary
    assert name not in rule_file.shipped_files()


@pytest.mark.parametrize(("name", "example"), [e for e in EXAMPLES if e[1].after])
def test_an_example_has_the_form_whatever_rules_are_chosen(name: str, example: Example) -> None:
    model = parse(example.text)
    made = onnxfuse.optimize(model, only=["softmax"])
    assert ops(made) == list(example.after)
    assert_same_numbers(model, made)


@pytest.mark.parametrize(("name", "example"), [e for e in EXAMPLES if e[1].refusal])
def test_an_example_that_is_refused_stays_as_it_is(name: str, example: Example) -> None:
    """For the reason that the file tells."""
    model = parse(example.text)
    assert ops(onnxfuse.optimize(model, only=["softmax"])) == [n.op_type for n in model.graph.node]
    graph = graph_of(model)
    found = [find(graph, r.source, r.where, node) for r in rule_file.forms()[name].rewrites for node in graph.nodes]
    assert any(example.refusal in one.reason for one in found if isinstance(one, Refusal))


@pytest.mark.parametrize("name", rule_file.forms())
def test_a_form_has_examples_of_both_kinds(name: str) -> None:
    assert {bool(e.after) for e in rule_file.forms()[name].examples} == {True, False}
