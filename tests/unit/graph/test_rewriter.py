"""A rewriter puts new nodes in the place of old ones, in the form of the model's operator set."""

import numpy as np
import pytest

from onnxfuse.graph.graph import Node
from onnxfuse.graph.rewriter import Rewriter, forward, rewrite_each, substitute
from onnxfuse.shapes.types import ValueType
from tests.support.small import graph_of, parse

TWO = """g (float[2,3] x) => (float[2,3] z) {
  [first] y = Relu (x)
  [second] z = Neg (y)
}"""


@pytest.mark.parametrize("opset", [12, 13])
def test_what_is_an_attribute_or_an_input_is_written_as_the_operator_set_has_it(opset: int) -> None:
    """Unsqueeze reads its axes as an input from operator set 13 on."""
    graph = graph_of(parse(TWO, opset))
    to = Rewriter(graph, graph.nodes[1])
    value = to.add("Unsqueeze", "y", axes=[0], hint="y.apart")
    to.add("Squeeze", value, axes=[0], output="z")
    apart, together = to.finish()
    if opset == 12:
        assert (apart.inputs, apart.written) == (("y",), {"axes": [0]})
    else:
        assert (apart.inputs, apart.written) == (("y", "y.apart.axes"), {})
        assert together.inputs == ("y.apart", "y.apart.axes")  # equal integers are stored once


def test_an_input_by_name_is_placed_where_the_schema_has_it() -> None:
    graph = graph_of(parse(TWO))
    to = Rewriter(graph, graph.nodes[1])
    to.add("Resize", "y", sizes=[4, 6], mode="nearest", output="z")
    (resize,) = to.finish()
    assert resize.inputs == ("y", "", "", "z.sizes")


def test_a_keyword_that_the_operator_lacks_is_a_mistake() -> None:
    graph = graph_of(parse(TWO))
    with pytest.raises(ValueError, match="axis"):
        Rewriter(graph, graph.nodes[1]).add("Reshape", "y", axis=1)


def test_a_node_in_the_place_of_another_has_its_name() -> None:
    """Others are called as what they compute."""
    graph = graph_of(parse(TWO))
    to = Rewriter(graph, graph.nodes[1])
    half = to.constant("half", np.array(0.5, np.float32))
    to.replace("z", to.add("Mul", to.add("Exp", "y"), half))
    new = to.finish()
    assert [(n.op, n.name, n.outputs) for n in new] == [("Exp", "z.exp", ("z.exp",)), ("Mul", "second", ("z",))]


def test_values_that_are_about_to_be_computed_have_names_of_their_own() -> None:
    """Two of one hint differ, and what was given up is free again."""
    graph = graph_of(parse(TWO))
    to = Rewriter(graph, graph.nodes[1])
    assert [to.value("y"), to.value("y"), to.value("new")] == ["y_1", "y_2", "new"]
    to.drop()
    assert Rewriter(graph, graph.nodes[1]).value("new") == "new"


def test_a_copy_keeps_what_is_not_changed() -> None:
    graph = graph_of(
        parse("""g (float[2,3] x) => (float[3,2] z) {
      y = Relu (x)
      [turn] z = Transpose <perm = [1,0]> (y)
    }""")
    )
    substitute(graph, graph.nodes[1], ["x"])
    (relu, turn) = graph.nodes
    assert (turn.name, turn.inputs, turn.outputs, turn.written["perm"]) == ("turn", ("x",), ("z",), [1, 0])
    substitute(graph, turn, perm=None)
    assert not graph.nodes[1].written
    forward(graph, relu, "x")
    assert graph.nodes[0].op == "Identity"


def test_types_of_new_values_are_known_at_once() -> None:
    graph = graph_of(parse(TWO))
    type_ = ValueType(1, (2, 3))
    to = Rewriter(graph, graph.nodes[1])
    assert graph.type(to.add("Exp", "y", type_=type_)) == type_


def test_a_node_that_its_function_leaves_stays() -> None:
    """Only nodes whose function writes something are replaced."""

    def no_negation(node: Node, to: Rewriter) -> bool:
        to.add("Abs", node.inputs[0], output=node.outputs[0])
        return node.op == "Relu"

    graph = graph_of(parse(TWO))
    assert rewrite_each(graph, {"Relu": no_negation, "Neg": no_negation})
    assert [n.op for n in graph.nodes] == ["Abs", "Neg"]
    assert not rewrite_each(graph, {"Neg": no_negation})
