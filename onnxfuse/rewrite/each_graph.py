"""A model's graphs one by one: bodies of If, Loop and Scan before what holds them."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from onnx import GraphProto, ModelProto

from onnxfuse.model import types
from onnxfuse.model.graph import Graph, bodies
from onnxfuse.model.types import opset_of

T = TypeVar("T")


def each_graph(model: ModelProto, act: Callable[[Graph], T]) -> list[T]:
    """Return what `act` does with the body of every If, Loop and Scan, innermost first, then with the main graph."""
    opset, returned = opset_of(model), list[T]()

    def visit(proto: GraphProto, inferred: GraphProto, parent: Graph | None) -> None:
        twins = zip(proto.node, inferred.node, strict=True)
        nested = [pair for node, twin in twins for pair in zip(bodies(node), bodies(twin), strict=True)]
        if nested:
            outer = Graph(proto, inferred, opset, parent)
            for body, twin in nested:
                visit(body, twin, outer)
        graph = Graph(proto, inferred, opset, parent)
        returned.append(act(graph))
        graph.commit()

    visit(model.graph, _inferred(types.shell(model).SerializeToString(deterministic=True)).graph, None)
    return returned


@lru_cache(maxsize=1)
def _inferred(light: bytes) -> ModelProto:
    """Return a model with its types, to be read alone: a phase that changes nothing leaves them to the next one."""
    return types.infer(ModelProto.FromString(light))
