"""Graphs within nodes: their nodes and names at every depth, what they read from outside, and the order of nodes."""

import itertools

import onnx
import pytest

from onnxfuse.graph.graph import Node
from onnxfuse.model.nested import (
    bodies,
    captured,
    constants_of,
    defined,
    every_name,
    graphs_in,
    in_order,
    nodes_of,
    readers_of,
)
from tests.support.small import parse

TEXT = """g (float[4] x, bool c) => (float[4] y) <float[4] w = {1,2,3,4}> {
  t = Neg (x)
  y = If (c) <
    then_branch = b () => (float[4] p) <float[4] v = {1,2,3,4}> {
      own = Add (t, v)
      p = If (c) <then_branch = bb () => (float[4] pp) { pp = Add (own, x) },
                  else_branch = be () => (float[4] qq) { qq = Identity (own) }> },
    else_branch = e () => (float[4] q) { q = Mul (t, w) }>
}"""


@pytest.fixture
def graph() -> onnx.GraphProto:
    return parse(TEXT).graph


def test_graphs_and_nodes_of_every_depth(graph: onnx.GraphProto) -> None:
    """Each graph before those in it, each node before those in its bodies."""
    assert [body.name for body in bodies(graph.node[1])] == ["b", "e"]
    assert [body.name for body in graphs_in(graph.node[1])] == ["b", "bb", "be", "e"]
    assert [n.output[0] for n in nodes_of(graph)] == ["t", "y", "own", "p", "pp", "qq", "q"]
    assert list(bodies(graph.node[0])) == []


def test_a_list_of_graphs_is_several_bodies(graph: onnx.GraphProto) -> None:
    node = onnx.helper.make_node("Switch", ["c"], ["y"], domain="other", cases=list(bodies(graph.node[1])))
    assert [body.name for body in bodies(node)] == ["b", "e"]


def test_readers_are_found_where_they_are(graph: onnx.GraphProto) -> None:
    found = [(where.name, node.output[0]) for where, node in readers_of(graph, "x")]
    assert found == [("g", "t"), ("bb", "pp")]
    assert list(readers_of(graph, "y")) == []


def test_names_of_a_graph_and_of_all_in_it(graph: onnx.GraphProto) -> None:
    """Of its inputs, weights and nodes; sparse weights too, and no outputs that are left out."""
    graph.node[0].output.append("")
    graph.sparse_initializer.add().values.name = "s"
    assert list(defined(graph)) == ["x", "c", "w", "s", "t", "y"]
    assert every_name(graph) == {"x", "c", "w", "s", "t", "y", "v", "own", "p", "pp", "qq", "q"}


def test_what_a_body_reads_from_outside_is_captured(graph: onnx.GraphProto) -> None:
    """Through every depth; names of the body's own are not."""
    node = graph.node[1]
    assert captured(node) == ["t", "c", "x", "w"]
    assert set(Node(node).reads) == {"c", "t", "x", "w"}


def test_an_outer_value_that_a_body_only_returns_is_captured() -> None:
    """But no input of the body, whatever has its name outside."""
    text = """g (float[4] x, int64 n, bool c) => (float[4] y) {
      z = Neg (x)
      y = Loop (n, c, x) <body = b (int64 i, bool go, float[4] x) => (bool go, float[4] z) { }>
    }"""
    assert captured(parse(text).graph.node[1]) == ["z"]


def test_constants_are_initializers_and_tensors_of_nodes() -> None:
    """A Constant that is written as a number or a list is no tensor; one of another library is no Constant."""
    text = """<ir_version: 8, opset_import: ["" : 17, "other" : 1]>
    g () => (float[2] y) <float[2] w = {1,2}> {
      a = Constant <value = float[2] {3,4}> () b = Constant <value_float = 1.0> ()
      d = other.Constant <value = float[2] {5,6}> () y = Add (w, a)
    }"""
    found = constants_of(parse(text).graph)
    assert {name: list(t.float_data) for name, t in found.items()} == {"w": [1, 2], "a": [3, 4]}


def test_nodes_come_behind_what_they_read(graph: onnx.GraphProto) -> None:
    """Also behind what their bodies read; of several orders it is the one that is nearest to the given one."""
    assert [n.output[0] for n in in_order(list(reversed(graph.node)))] == ["t", "y"]
    chain = list(
        parse("g (float[4] x) => (float[4] d) { a = Neg (x) b = Exp (a) c = Abs (x) d = Add (b, c) }").graph.node
    )
    for given in itertools.permutations(chain):
        names = [n.output[0] for n in in_order(given)]
        assert names.index("a") < names.index("b") < names.index("d") > names.index("c")
    assert in_order(chain) == chain
    assert [n.output[0] for n in in_order([chain[1], chain[2], chain[0], chain[3]])] == ["c", "a", "b", "d"]


def test_nodes_on_a_cycle_stay_at_the_end() -> None:
    """In their order, behind all others."""
    nodes = [
        onnx.helper.make_node("Add", ["b", "x"], ["a"]),
        onnx.helper.make_node("Neg", ["a"], ["b"]),
        onnx.helper.make_node("Exp", ["d"], ["c"]),
        onnx.helper.make_node("Abs", ["x"], ["d"]),
    ]
    assert [n.output[0] for n in in_order(nodes)] == ["d", "c", "a", "b"]
