"""Reading a model's graphs: what has not changed is not read again."""

import numpy as np
import onnx
import pytest

from onnxfuse.graph.graph import Graph, Node
from onnxfuse.passes import pipeline
from onnxfuse.rules.rewriting import every_graph
from onnxfuse.rules.rewriting.every_graph import LastRead, for_every_graph
from tests.support.small import parse

CHAIN = """<ir_version: 8, opset_import: ["" : 20]>
g (float[4] x) => (float[4] y) { a = Relu (x) b = Exp (a) y = Neg (b) }"""
BRANCH = """<ir_version: 8, opset_import: ["" : 20]>
g (float[4] x, bool c) => (float[4] y) {
  y = If (c) <then_branch = t () => (float[4] a) { a = Relu (x) }, else_branch = e () => (float[4] b) { b = Exp (x) }>
}"""


def again(model: onnx.ModelProto, change: object = None) -> tuple[Graph, Graph]:
    """Return the main graph of two calls, between which, or in the first of which, something is changed."""
    last, found = LastRead(), list[Graph]()

    def act(graph: Graph) -> None:
        if graph.parent is None:
            found.append(graph)
        if callable(change) and len(found) == 1:
            change(graph)

    for _ in range(2):
        for_every_graph(model, act, last)
    first, second = found
    return first, second


def test_a_graph_in_which_nothing_changed_is_read_once() -> None:
    """The same graph serves the next pass, and its types are not asked for again."""
    model = parse(CHAIN)
    before = model.SerializeToString(deterministic=True)
    first, second = again(model)
    assert first is second
    assert model.SerializeToString(deterministic=True) == before


def exchange(graph: Graph) -> None:
    """Replace a node."""
    graph.replace([graph.nodes[1]], [Node(onnx.helper.make_node("Abs", ["a"], ["b"]))])


def choose(graph: Graph) -> None:
    """Choose a name: the next one would be another than in a graph that is read anew."""
    graph.fresh("a")


def declare(graph: Graph) -> None:
    """Give a value that has no type a type."""
    graph.types["other"] = graph.type("a")


@pytest.mark.parametrize("change", [exchange, choose, declare])
def test_a_graph_that_changed_is_read_anew(change: object) -> None:
    """Nodes, names that were chosen, and types: what a graph has learned is not in the model."""
    first, second = again(parse(CHAIN), change)
    assert first is not second


def test_a_changed_weight_is_read() -> None:
    """Another weight of the same type in the message, which inference does not see, is the one that is read."""
    model = parse(CHAIN)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(4096, np.float32), "w"))
    model.graph.node[1].CopyFrom(onnx.helper.make_node("Add", ["a", "w"], ["b"]))
    last, found = LastRead(), list[Graph]()
    for_every_graph(model, found.append, last)
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4096, np.float32), "w"))
    last.is_current = False
    for_every_graph(model, found.append, last)
    array = found[1].constant("w")
    assert array is not None
    assert array.all()


def test_bodies_are_read_each_time() -> None:
    """What a branch became is not seen from the main graph's nodes."""
    model = parse(BRANCH)
    last = LastRead()
    for_every_graph(model, lambda graph: None, last)
    assert not last.is_current


def test_an_optimized_chain_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as the file has it, and once after it was fused: other phases change nothing."""
    read = list[int]()

    class Counted(Graph):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]  # as they came
            read.append(self.size)

    monkeypatch.setattr(every_graph, "Graph", Counted)
    pipeline.run(parse(CHAIN))
    assert read == [3, 1]


def test_a_main_graph_is_read_anew_where_a_body_changed() -> None:
    """What the branches capture is part of the main graph's nodes."""
    model, last, read = parse(BRANCH), LastRead(), list[tuple[str, ...]]()

    def rename(graph: Graph) -> None:
        if graph.parent is None:
            read.append(graph.nodes[-1].captures)
        elif read and graph.nodes[0].op == "Relu":
            graph.replace(graph.nodes, [Node(onnx.helper.make_node("Identity", ["other"], ["a"]))])

    for _ in range(2):
        for_every_graph(model, rename, last)
    assert read == [("x",), ("other", "x")]
