"""A node is written as what its operator is defined by: equal constants once, and only outputs that are read."""

from onnxfuse.graph.defined import write_definition
from tests.support.definitions import model_of
from tests.support.small import graph_of

TWO = """g (float[N,S,8] x) => (float[N,S,8] y) {
  h = com.microsoft.QuickGelu (x)
  y = com.microsoft.QuickGelu (h)
}"""


def test_equal_constants_are_one() -> None:
    """Of all nodes that are written with the same memory: what layers compute alike is computed once."""
    model = model_of(TWO)
    graph, constants = graph_of(model), dict[bytes, str]()
    assert [write_definition(graph, n, constants) for n in list(graph.nodes)] == [True, True]
    graph.commit()
    assert [n.op_type for n in model.graph.node] == ["Mul", "Sigmoid", "Mul"] * 2
    assert len({n.input[1] for n in model.graph.node[::3]}) == 1
    assert len(constants) == 1


def test_outputs_that_nobody_reads_are_not_written() -> None:
    """Of a residual that is read alone the sum remains."""
    model = model_of("""g (float[N,S,2] x, float[N,S,2] r) => (float[N,S,2] sum) <float[2] s = {1,2}> {
      y, , , sum = com.microsoft.SkipLayerNormalization (x, r, s)
    }""")
    graph = graph_of(model)
    assert write_definition(graph, graph.nodes[0], {})
    graph.commit()
    assert [(n.op_type, *n.output) for n in model.graph.node] == [("Add", "sum")]


def test_an_operator_without_a_definition_stays() -> None:
    """As one in a form that its definition does not know."""
    graph = graph_of(model_of("g (float[N] x) => (float[N] y) { y = Relu (x) }"))
    assert not write_definition(graph, graph.nodes[0], {})
    assert [n.op for n in graph.nodes] == ["Relu"]
