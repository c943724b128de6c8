"""A model's graphs one by one: bodies of If, Loop and Scan before what holds them."""

from collections.abc import Callable
from typing import TypeVar

from onnx import GraphProto, ModelProto

from onnxfuse.model.graph import Graph, bodies
from onnxfuse.model.types import inferred, opset_of

T = TypeVar("T")


def each_graph(model: ModelProto, act: Callable[[Graph], T]) -> list[T]:
    """Return what `act` does with the body of every If, Loop and Scan, innermost first, then with the main graph."""
    opset, returned = opset_of(model), list[T]()

    def visit(proto: GraphProto, typed: GraphProto, parent: Graph | None) -> None:
        twins = zip(proto.node, typed.node, strict=True)
        nested = [pair for node, twin in twins for pair in zip(bodies(node), bodies(twin), strict=True)]
        if nested:
            outer = Graph(proto, typed, opset, parent)
            for body, twin in nested:
                visit(body, twin, outer)
        graph = Graph(proto, typed, opset, parent)
        returned.append(act(graph))
        graph.commit()

    visit(model.graph, inferred(model).graph, None)
    return returned
