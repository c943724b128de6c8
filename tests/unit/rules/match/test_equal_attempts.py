"""An attempt at a node whose surroundings equal another one's is not made, and would end as it is said to end."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfuse.graph.graph import Graph, Node
from onnxfuse.rules.match import equal_attempts
from onnxfuse.rules.match.equal_attempts import HUB, EqualAttempts, Outcome
from onnxfuse.rules.match.match import Match, Refusal
from onnxfuse.rules.pattern.pattern import parse as parse_pattern
from onnxfuse.rules.rewriting.rewrite import find
from tests.support.small import graph_of

LINEAR = parse_pattern("(x, w, b) => (y) { m = MatMul (x, w) y = Add (m, b) }", "here")


class Attempted:
    """Finds a pattern at nodes, and holds each outcome to that of a new attempt."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.equal, self.made = graph, EqualAttempts(graph), 0

    def at(self, value: str) -> Outcome:
        """Return the outcome at the node that computes a value."""
        node = self.graph.producers[value]

        def search() -> Outcome:
            self.made += 1
            return find(self.graph, LINEAR, (), node)

        found, expected = self.equal.find(0, node, search), find(self.graph, LINEAR, (), node)
        if isinstance(expected, Match):
            assert isinstance(found, Match)
            assert (found.nodes, found.values) == (expected.nodes, expected.values)
        else:
            assert found == expected
        return found


def layers(count: int, width: Callable[[int], int] = lambda _: 8, first: str = "MatMul") -> ModelProto:
    """Return a chain of layers named by their numbers; `width` gives the columns of each."""
    nodes, weights, value, columns = [], list[TensorProto](), "x", 8
    for i in range(count):
        weights.append(numpy_helper.from_array(np.full((columns, width(i)), i, np.float32), f"w{i}"))
        weights.append(numpy_helper.from_array(np.full(width(i), i, np.float32), f"b{i}"))
        nodes.append(helper.make_node(first, [value, f"w{i}"], [f"m{i}"], f"product {i}"))
        nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"], f"sum {i}"))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [f"r{i}"], f"relu {i}"))
        value, columns = f"r{i}", width(i)
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, None)], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_equal_layers_take_one_attempt() -> None:
    """Matches bind the nodes and values of their own layer."""
    attempted = Attempted(graph_of(layers(6)))
    found = [attempted.at(f"a{i}") for i in range(6)]
    assert attempted.made == 1
    assert [m.values["w"] for m in found if isinstance(m, Match)] == [f"w{i}" for i in range(6)]


def test_a_refusal_names_what_is_at_its_own_place() -> None:
    """Nodes and values, in each field."""
    attempted = Attempted(graph_of(layers(4, first="Mul")))
    found = [attempted.at(f"a{i}") for i in range(4)]
    assert attempted.made == 2  # the first layer's product reads an input of the graph
    assert [r.node for r in found if isinstance(r, Refusal)] == [f"product {i}" for i in range(4)]


def test_other_types_are_another_attempt() -> None:
    """Extents of what was asked about are part of the surroundings."""
    attempted = Attempted(graph_of(layers(4, width=lambda i: 8 * (1 + i % 2))))
    before = attempted.made
    for i in range(4):
        attempted.at(f"a{i}")
    assert attempted.made - before in (2, 4)


@pytest.mark.parametrize("op", ["Mul", "Sub"])
def test_a_change_makes_another_attempt(op: str) -> None:
    """An outcome from before a change of what it depends on is not the outcome after it."""
    graph = graph_of(layers(3))
    attempted = Attempted(graph)
    assert isinstance(attempted.at("a1"), Match)
    graph.replace([graph.producers["m1"]], [Node(helper.make_node(op, ["r0", "w1"], ["m1"], "other"))])
    assert not isinstance(attempted.at("a1"), Match)
    assert isinstance(attempted.at("a2"), Match)


def test_another_reader_of_an_inner_value_makes_another_attempt() -> None:
    """A value that a match would lose is read elsewhere."""
    graph = graph_of(layers(3))
    attempted = Attempted(graph)
    assert isinstance(attempted.at("a1"), Match)
    graph.replace([graph.producers["r1"]], [Node(helper.make_node("Add", ["a1", "m1"], ["r1"], "reader"))])
    found = attempted.at("a1")
    assert isinstance(found, Refusal)
    assert found.cause.kind == "read elsewhere"
    assert isinstance(attempted.at("a0"), Match)


def test_a_value_of_many_readers_is_known_by_its_name() -> None:
    """Each change of them is another answer."""
    graph = graph_of(layers(1))
    for i in range(2 * HUB):
        graph.replace(
            [graph.producers["r0"]],
            [
                Node(helper.make_node("Neg", ["m0"], [f"n{i}"], f"reader {i}")),
                Node(helper.make_node("Relu", ["a0"], ["r0"], "relu 0")),
            ],
        )
    attempted = Attempted(graph)
    found = attempted.at("a0")
    assert isinstance(found, Refusal)
    assert found.cause.kind == "read elsewhere"
    graph.eliminate_dead_code()
    assert isinstance(attempted.at("a0"), Match)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound attempts are made, and end the same."""
    monkeypatch.setattr(equal_attempts, "LARGEST", 1)
    attempted = Attempted(graph_of(layers(4)))
    assert all(isinstance(attempted.at(f"a{i}"), Match) for i in range(4))
    assert attempted.made == 4


def test_constants_are_compared_by_their_elements() -> None:
    """One number is another one's equal, a matrix is itself alone."""
    pattern = parse_pattern("(x) => (y) { c = Constant <value_float = 2.0> () y = Mul (x, c) }", "here")
    numbers, nodes = [2.0, 2.0, 3.0], []
    for i in range(3):
        nodes.append(helper.make_node("Mul", ["x", f"c{i}"], [f"y{i}"], f"product {i}"))
    weights = [numpy_helper.from_array(np.asarray(n, np.float32), f"c{i}") for i, n in enumerate(numbers)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [4]) for i in range(3)]
    made = helper.make_graph(nodes, "g", inputs, outputs, weights)
    graph = graph_of(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    equal, searched = EqualAttempts(graph), list[str]()

    def at(node: Node) -> Outcome:
        def search() -> Outcome:
            searched.append(node.name)
            return find(graph, pattern, (), node)

        return equal.find(0, node, search)

    found = [at(node) for node in graph.nodes]
    assert [isinstance(one, Match) for one in found] == [True, True, False]
    assert searched == ["product 0", "product 2"]


def test_a_name_that_two_nodes_have_is_not_carried_over() -> None:
    """A node without a name is called by its output, which may be another one's name."""
    model = layers(3, first="Mul")
    model.graph.node[6].name = ""
    model.graph.node[5].name = "m2"
    attempted = Attempted(graph_of(model))
    found = [attempted.at(f"a{i}") for i in (2, 1)]
    assert [r.node for r in found if isinstance(r, Refusal)] == ["m2", "product 1"]
