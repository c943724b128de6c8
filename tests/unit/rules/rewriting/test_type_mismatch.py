"""A rewrite of a user's that gives a value another type is an error; what is not known to differ is not."""

from dataclasses import replace
from pathlib import Path

import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.rules.language.rule_file import Rule, shipped
from onnxfuse.rules.rewriting.type_mismatch import check
from onnxfuse.shapes.types import ValueType
from onnxfuse.support.errors import RuleError
from tests.support.extents import extents
from tests.support.small import graph_of, parse

MINE = replace(shipped()[0], name="mine", path=Path("mine.toml"))
OLD = graph_of(parse("g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }"))


def checked(new: str, rule: Rule = MINE, old: Graph = OLD) -> None:
    """Check a graph whose nodes replace those of the old one."""
    check(old, rule, old.nodes, graph_of(parse(new)).nodes)


@pytest.mark.parametrize(
    ("new", "becomes"),
    [
        ("g (float[N,4] x) => (float16[N,4] y) { y = Cast <to = 10> (x) }", r"float16\[N,4\]"),
        ("g (float[N,4] x) => (float[N] y) { y = ReduceSum <keepdims = 0> (x, a) }", r"float\[N\]"),
        ("g (float[N,4] x) => (float[N,8] y) { y = Concat <axis = 1> (x, x) }", r"float\[N,8\]"),
    ],
)
def test_another_type_is_an_error(new: str, becomes: str) -> None:
    """Another element type, rank or extent, each with both types."""
    text = new.replace("=> (float[N] y)", "=> (float[N] y) <int64[1] a = {1}>")
    old = graph_of(parse("g (float[N,4] x) => (float[N,4] y) <int64[1] a = {1}> { y = Relu (x) }"))
    with pytest.raises(
        RuleError, match=rf"mine.toml: the rule 'mine' changes the type of 'y' .*: .*\[N,4\] would become {becomes}"
    ):
        checked(text, old=old)


@pytest.mark.parametrize(
    "new",
    [
        "g (float[N,4] x) => (float[N,4] y) { y = Neg (x) }",
        "g (float[N,4] x) => (float[N,4] z) { z = Neg (x) }",
        "g (float[N,4] x) => (float[N,4] y) { y = other.Thing (x) }",
    ],
)
def test_the_same_type_or_an_unknown_one_is_none(new: str) -> None:
    """Nor is a value that is not made, or of an operator that ONNX does not know."""
    checked(new)


def test_extents_by_name_are_not_compared() -> None:
    """A name may equal another expression; an unknown old type equals all."""
    old = graph_of(parse("g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }"))
    new = "g (float[N,4] x) => (float[N,4] y) { y = Cast <to = 1> (x) }"
    for type_ in (ValueType(1, extents("M", 4)), ValueType(1, None), ValueType(0, extents("N", 4))):
        old.retype("y", type_)
        checked(new, old=old)
    for type_ in (ValueType(1, extents("M", 5)), ValueType(10, None), ValueType(1, extents("N", 4, 1))):
        old.retype("y", type_)
        with pytest.raises(RuleError):
            checked(new, old=old)


def test_shipped_rules_are_not_checked() -> None:
    """Their examples are."""
    checked("g (float[N,4] x) => (float16[N,4] y) { y = Cast <to = 10> (x) }", shipped()[0])
