"""Nested graphs and the names in them: what a body reads of the graph around it, and what it has itself."""

import pytest

from onnxfuse.precision.scopes import Scope, called, every, key, scopes_of
from onnxfuse.shapes.types import UNKNOWN
from tests.support.small import parse

TEXT = """g (float[2] x, bool c, float[2] v) => (float[2] y) <float[2] w = {1, 2}, float[2] v = {3, 4}> {
  k = Constant <value = float {0.5}> ()
  [scale] a = Mul (x, w)
  y = If (c) <
    then_branch = t () => (float[2] p) { b = Add (a, k) x = Neg (b) p = Mul (x, x) },
    else_branch = e () => (float[2] q) { q = Add (a, v) }
  >
}"""


@pytest.fixture
def main() -> Scope:
    """Return the main graph."""
    return scopes_of(parse(TEXT))


@pytest.fixture
def branches(main: Scope) -> list[Scope]:
    """Return the bodies of the If."""
    return [*every(main)][1:]


def test_every_body_is_a_graph_in_its_own(main: Scope, branches: list[Scope]) -> None:
    """By the node that has it."""
    assert len(branches) == 2
    assert [len(b) for b in main.bodies.values()] == [2]
    (at,) = main.bodies
    assert main.proto.node[at].op_type == "If"
    assert [b.parent for b in branches] == [main, main]
    assert main.parent is None


def test_a_name_is_that_of_the_nearest_graph(main: Scope, branches: list[Scope]) -> None:
    """A body may have a value of a name that the graph around it has, too."""
    then, other = branches
    assert [then.home(n) for n in ("x", "a", "k", "nobody")] == [then, main, main, None]
    assert other.home("x") is main
    assert (str(then.type("a")), then.type("nobody")) == ("float[2]", UNKNOWN)


def test_producers_and_readers_are_those_of_all_graphs(main: Scope, branches: list[Scope]) -> None:
    """Each reader once, in the order of the file."""
    then, other = branches
    found = then.producer("a")
    assert found is not None
    assert (found[0], found[1].name) == (main, "scale")
    assert then.producer("w") is None
    assert then.producer("nobody") is None
    assert [(s, n.op_type) for s, n in main.uses("a")] == [(then, "Add"), (other, "Add")]
    assert [(s, n.op_type) for s, n in then.uses("x")] == [(then, "Mul")]
    assert [(s, n.op_type) for s, n in main.uses("x")] == [(main, "Mul")]
    assert main.uses("nobody") == []


def test_weights_that_a_caller_may_replace_are_no_constants(main: Scope, branches: list[Scope]) -> None:
    """Weights and Constant nodes are, also for bodies."""
    then, _ = branches
    assert [n for n in ("w", "k", "v", "x", "nobody") if then.constant(n) is not None] == ["w", "k"]
    assert main.home("v") is main


def test_nodes_are_called_by_name_or_by_output(main: Scope) -> None:
    """The key is the output, which is unique."""
    nodes = main.proto.node
    scale = next(n for n in nodes if n.op_type == "Mul")
    assert (called(scale), key(scale)) == ("scale", "a")
    unnamed = parse("g (float[2] x) => (float[2] y) { , y = Nobody (x) }").graph.node[0]
    unnamed.name = ""
    assert (called(unnamed), key(unnamed)) == ("y", "y")
    del unnamed.output[:]
    assert key(unnamed) == ""
