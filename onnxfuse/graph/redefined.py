"""Deduplicate constants defined more than once under one name: the last definition wins, as in ONNX Runtime.

ONNX Runtime's own optimizers write such files, which ONNX forbids. A value computed by two other nodes is rejected by
both.
"""

from onnx import GraphProto, ModelProto, NodeProto

from onnxfuse import ops
from onnxfuse.graph.concrete_shapes import every_graph

CONSTANT = ops.Constant


def redefined(model: ModelProto) -> list[str]:
    """Return the names defined by several constants, bodies included, in order."""
    return [name for graph in every_graph(model.graph) for name in _shared(graph)]


def keep_last_definitions(model: ModelProto) -> None:
    """Keep only the last constant of each name, in place: a Constant node comes after initializers.

    Definitions of different types or shapes stay: ONNX Runtime rejects them.
    """
    for graph in every_graph(model.graph):
        alike = [places for places in _shared(graph).values() if len({_form(graph, *p) for p in places}) == 1]
        for node, index in sorted((p for places in alike for p in places[:-1]), reverse=True):
            if node:
                del graph.node[index]
            else:
                del graph.initializer[index]


def _shared(graph: GraphProto) -> dict[str, list[tuple[bool, int]]]:
    """Return the locations of constants that share a name: whether a node, and the position."""
    found: dict[str, list[tuple[bool, int]]] = {}
    for index, tensor in enumerate(graph.initializer):
        found.setdefault(tensor.name, []).append((False, index))
    for index, node in enumerate(graph.node):
        if _is_constant(node):
            found.setdefault(node.output[0], []).append((True, index))
    return {name: places for name, places in found.items() if places[1:]}


def _form(graph: GraphProto, node: bool, index: int) -> tuple[int, ...]:
    """Return the element type and the shape of a constant; empty if it is not a tensor."""
    tensor = graph.node[index].attribute[0].t if node and graph.node[index].attribute else None
    tensor = tensor if node else graph.initializer[index]
    return () if tensor is None else (tensor.data_type, *tensor.dims)


def _is_constant(node: NodeProto) -> bool:
    return node.op_type == CONSTANT and node.domain in ("", "ai.onnx") and len(node.output) == 1
