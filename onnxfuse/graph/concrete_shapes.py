"""Specialize a model to concrete values of its dynamic dimensions, and report the shapes of its fused ops there."""

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import GraphProto, NodeProto

from onnxfuse.graph.graph import bodies
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.overridable import required_inputs
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import UNKNOWN, ValueType, value_types
from onnxfuse.symbolic.integer import Int
from onnxfuse.symbolic.parsing import parsed

Shape = tuple[int, ...]


def with_sizes(model: onnx.ModelProto, sizes: Mapping[str, int]) -> tuple[onnx.ModelProto, dict[str, int]]:
    """Return the model without weights and with integers for its input dimensions, and the names of assumed ones.

    `sizes` is by dimension name, INPUT[AXIS] for an unnamed one; missing dimensions are assumed to be 1.
    """
    light = infer(model)
    sizes = {**{str(parsed(name)): size for name, size in sizes.items()}, **sizes}  # names are in normal form there
    del light.graph.value_info[:]
    assumed: dict[str, int] = {}
    for value in light.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value"):
                continue
            name = dim.dim_param or f"{value.name}[{axis}]"
            if name not in sizes:
                assumed[name] = 1
            dim.dim_value = sizes.get(name, 1)
    for value in light.graph.output:
        value.type.tensor_type.ClearField("shape")
    return light, assumed


def open_dims(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names of a model's dynamic input dimensions, INPUT[AXIS] for unnamed ones."""
    dims = (
        d.dim_param or f"{i.name}[{n}]"
        for i in required_inputs(model.graph)
        for n, d in enumerate(i.type.tensor_type.shape.dim)
        if not d.HasField("dim_value")
    )
    return tuple(dict.fromkeys(dims))


def every_graph(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield `graph` and the bodies of If, Loop and Scan inside it, in pre-order."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from every_graph(body)


def every_type(graph: GraphProto) -> dict[str, ValueType]:
    """Return the type of each value declared in `graph` and its nested bodies."""
    types = dict[str, ValueType]()
    for one in every_graph(graph):
        types.update(value_types(one))
    return types


def fused_nodes(graph: GraphProto) -> dict[str, list[NodeProto]]:
    """Return the nodes of each fused op, bodies of If, Loop and Scan included."""
    nodes = dict[str, list[NodeProto]]()
    for one in every_graph(graph):
        for node in one.node:
            if node.domain == DOMAIN:
                nodes.setdefault(node.op_type, []).append(node)
    return nodes


def input_shapes(node: NodeProto, types: Mapping[str, ValueType]) -> tuple[Shape, ...] | None:
    """Return the input shapes of a node, None if one is unknown."""
    shapes = tuple(s for v in node.input if (s := types.get(v, UNKNOWN).static_shape) is not None)
    return shapes if len(shapes) == len(node.input) else None


def may_have(node: NodeProto, shapes: Sequence[Shape], types: Mapping[str, ValueType]) -> bool:
    """Return whether these shapes are consistent with the types of a node's inputs.

    Known extents must match, and each named extent must have one value throughout.
    """
    sizes = dict[Int, int]()
    for value, given in zip(node.input, shapes, strict=True):
        shape = types.get(value, UNKNOWN).shape
        if shape is None:
            continue
        if len(shape) != len(given):
            return False
        for extent, size in zip(shape, given, strict=True):
            known = sizes.setdefault(extent, size) if isinstance(extent, Int) else extent
            if known not in (None, size):
                return False
    return True
