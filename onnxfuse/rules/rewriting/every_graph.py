"""Iterate over a model's graphs in post-order: bodies of If, Loop and Scan before the graph that contains them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from onnx import GraphProto, ModelProto, NodeProto

from onnxfuse.graph.graph import Graph, bodies
from onnxfuse.model.schema import opset_of
from onnxfuse.shapes.inference import inferred

T = TypeVar("T")


@dataclass
class LastRead:
    """A model's main graph as it was read last: where nothing has changed since, it serves once more."""

    graph: Graph | None = None
    typed: GraphProto | None = None
    """The inferred types that it was read with: the same object as long as the model is the same."""
    is_current: bool = False
    """Whether the model is known to be as it was read: no graph has changed, and no pass ran over the model."""

    def types(self, model: ModelProto) -> GraphProto:
        """Return the inferred types of a model."""
        return self.typed if self.is_current and self.typed is not None else inferred(model).graph

    def read(self, proto: GraphProto, typed: GraphProto, opset: int) -> Graph:
        """Return the main graph of a model."""
        last, self.graph = self.graph, None
        if last is None or self.typed is not typed or last.proto is not proto or not last.is_as_read():
            last = Graph(proto, typed, opset)
        self.graph, self.typed = last, typed
        return last


def for_every_graph(model: ModelProto, act: Callable[[Graph], T], last: LastRead | None = None) -> list[T]:
    """Apply `act` to the body of every If, Loop and Scan, innermost first, then to the main graph.

    `last` is that of earlier calls for the same model.
    """
    opset, returned, main = opset_of(model), list[T](), LastRead() if last is None else last

    def visit(proto: GraphProto, typed: GraphProto, parent: Graph | None, holder: NodeProto | None) -> None:
        twins = ((node, twin) for node, twin in zip(proto.node, typed.node, strict=True) if node.attribute)
        nested = [(node, *pair) for node, twin in twins for pair in zip(bodies(node), bodies(twin), strict=True)]
        if nested:
            outer = Graph(proto, typed, opset, parent, holder)
            for node, body, twin in nested:
                visit(body, twin, outer, node)
        graph = main.read(proto, typed, opset) if parent is None else Graph(proto, typed, opset, parent, holder)
        returned.append(act(graph))
        declared = len(proto.value_info)
        graph.commit()
        if not graph.is_as_read():
            main.graph = None  # it has read weights, which may take much memory
        main.is_current = not nested and main.graph is graph and len(proto.value_info) == declared

    visit(model.graph, main.types(model), None, None)
    return returned
