"""Declared shapes of intermediate values that contradict what the operators compute."""

from onnx import GraphProto, ModelProto

from onnxfuse.model.nested import bodies
from onnxfuse.shapes.inference import inferred
from onnxfuse.shapes.types import ValueType, type_of, value_info, value_types


def correct_declarations(model: ModelProto) -> None:
    """Replace the declared shapes of intermediate values that contradict inference, in nested bodies as well.

    Files come with types from ONNX's own inference, which counts a window of a pool that ONNX Runtime does not compute,
    or from an exporter that changed the graph afterwards. ONNX Runtime runs such a file and computes other extents.
    Outputs keep their declarations: they are the model's interface.
    """
    if _any_declared(model.graph):
        _correct(model.graph, inferred(model).graph)


def contradict(one: ValueType, other: ValueType) -> bool:
    """Return whether two shapes differ in rank or integers: names of extents may be equal."""
    if one.shape is None or other.shape is None:
        return False
    if len(one.shape) != len(other.shape):
        return True
    pairs = zip(one.shape, other.shape, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def _any_declared(graph: GraphProto) -> bool:
    return bool(graph.value_info) or any(_any_declared(body) for node in graph.node for body in bodies(node))


def _correct(graph: GraphProto, typed: GraphProto) -> None:
    known = value_types(typed)
    for info in graph.value_info:
        own, declared = known.get(info.name), type_of(info.type)
        if own is not None and own.dtype == declared.dtype and contradict(own, declared):
            info.CopyFrom(value_info(info.name, own))
    for node, twin in zip(graph.node, typed.node, strict=True):
        for body, other in zip(bodies(node), bodies(twin), strict=True):
            _correct(body, other)
