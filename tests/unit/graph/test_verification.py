"""A graph that a pass left inconsistent is caught behind it, with the node and the value."""

import onnx
import pytest

from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.verification import InvalidGraphError, verify_graph
from onnxfuse.shapes.inference import infer
from tests.support.small import graph_of, parse

TEXT = """g (float[4] x, bool c) => (float[4] y) <float[4] w = {1,2,3,4}> {
  a = Add (x, w)
  b = If (c) <then_branch = t () => (float[4] p) { p = Neg (a) },
              else_branch = e () => (float[4] q) { q = Add (a, w) }>
  y = Relu (b)
}"""


def refusal(graph: Graph) -> str:
    with pytest.raises(InvalidGraphError) as caught:
        verify_graph(graph)
    return str(caught.value)


def test_a_consistent_graph_passes() -> None:
    """Values are read by nodes, by bodies, and from a body's outer graphs."""
    model = parse(TEXT)
    inferred = infer(model).graph
    outer = Graph(model.graph, inferred, 17)
    verify_graph(outer)
    for attribute in model.graph.node[1].attribute:
        verify_graph(Graph(attribute.g, attribute.g, 17, outer))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("Add (x, w)", "Add (x, v)", "Add a reads 'v', which nothing before it defines"),
        ("p = Neg (a)", "p = Neg (z)", "If b reads 'z', which nothing before it defines"),
        ("y = Relu", "r = Relu", "the output 'y' is defined nowhere"),
    ],
)
def test_what_is_read_is_defined(old: str, new: str, told: str) -> None:
    """By a node, an input or a weight; also what a body reads, or the caller wants."""
    assert old in TEXT
    proto = parse(TEXT.replace(old, new)).graph
    assert refusal(Graph(proto, onnx.GraphProto(), 17)) == told


def test_what_is_read_is_defined_before() -> None:
    graph = graph_of(parse(TEXT))
    graph.nodes.reverse()
    assert refusal(graph) == "Relu y reads 'b', which nothing before it defines"


@pytest.mark.parametrize("value", ["x", "w", "a"])
def test_a_value_is_defined_once(value: str) -> None:
    """Neither by an input, a weight nor a node before."""
    graph = graph_of(parse(TEXT))
    graph.nodes[-1].outputs = (value,)
    assert refusal(graph) == f"Relu y defines {value!r} a second time"


def test_names_of_nodes_are_their_own() -> None:
    """Those without one have no name in common."""
    text = "g (float[4] x) => (float[4] y) { [n] a = Neg (x) [n] b = Exp (a) y = Relu (b) }"
    proto = parse(text).graph
    assert refusal(Graph(proto, proto, 17)) == "two nodes are named 'n'"


def test_the_index_has_the_graph_s_own_nodes() -> None:
    graph = graph_of(parse("g (float[4] x) => (float[4] y) { y = Relu (x) }"))
    graph.nodes[0] = Node(graph.nodes[0].proto)
    assert refusal(graph) == "the index of producers has another node than Relu y for 'y'"


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ("float[4] a", ""),
        ("float[N] a", ""),
        ("float[5] a", "'a' is declared float[5], and is float[4]"),
        ("float16[4] a", "'a' is declared float16[4], and is float[4]"),
    ],
)
def test_what_is_declared_is_what_is_inferred(declared: str, told: str) -> None:
    """A size that has a name may be any."""
    text = "g (float[4] x) => (float[4] y) { a = Neg (x) y = Relu (a) }"
    graph = graph_of(parse(text))
    graph.proto.value_info.extend(parse(f"d () => ({declared}) {{ }}").graph.output)
    if told:
        assert refusal(graph) == told
    else:
        verify_graph(graph)


def test_what_is_declared_of_a_value_that_is_gone_says_nothing() -> None:
    graph = graph_of(parse("g (float[4] x) => (float[4] y) { a = Neg (x) y = Relu (x) }"))
    graph.proto.value_info.extend(parse("d () => (float[5] a) { }").graph.output)
    assert "'a' is declared" in refusal(graph)
    graph.eliminate_dead_code()
    verify_graph(graph)
