"""Iterate over a model's graphs in post-order: bodies of If, Loop and Scan before the graph that contains them."""

from collections.abc import Callable
from typing import TypeVar

from onnx import GraphProto, ModelProto, NodeProto

from onnxfuse.graph.graph import Graph, bodies
from onnxfuse.model.schema import opset_of
from onnxfuse.shapes.inference import inferred

T = TypeVar("T")


def for_every_graph(model: ModelProto, act: Callable[[Graph], T]) -> list[T]:
    """Apply `act` to the body of every If, Loop and Scan, innermost first, then to the main graph."""
    opset, returned = opset_of(model), list[T]()

    def visit(proto: GraphProto, typed: GraphProto, parent: Graph | None, holder: NodeProto | None) -> None:
        twins = zip(proto.node, typed.node, strict=True)
        nested = [(node, *pair) for node, twin in twins for pair in zip(bodies(node), bodies(twin), strict=True)]
        if nested:
            outer = Graph(proto, typed, opset, parent, holder)
            for node, body, twin in nested:
                visit(body, twin, outer, node)
        graph = Graph(proto, typed, opset, parent, holder)
        returned.append(act(graph))
        graph.commit()

    visit(model.graph, inferred(model).graph, None, None)
    return returned
