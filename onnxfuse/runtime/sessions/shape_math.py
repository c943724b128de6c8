"""Find fused ops that ONNX Runtime would place on the CPU in a CUDA session, because they compute shapes.

A registered op has no CPU kernel and the session would fail, so these ops run through their bodies.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import onnx

from onnxfuse import ops
from onnxfuse.graph.graph import bodies
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.host_values import SMALL, leaves_on_host
from onnxfuse.model.schema import is_random
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from onnxfuse.support.errors import ModelError


def shape_math(model: onnx.ModelProto) -> set[str]:
    """Return the names of the fused ops that have a shape-only node in `model` or its subgraphs."""
    values = _found(model.graph, model.graph)
    if not values:
        return values
    try:  # Undeclared types matter only here, and inference is slow.
        return _found(model.graph, infer(model).graph)
    except ModelError:  # ONNX Runtime may open it all the same
        return values


def _found(
    graph: onnx.GraphProto,
    typed: onnx.GraphProto,
    outer: frozenset[str] = frozenset(),
    outer_small: frozenset[str] = frozenset(),
    outer_types: Mapping[str, int] = MappingProxyType({}),
) -> set[str]:
    """Return the names of such ops in one graph; `typed` is the same graph with types.

    `outer` are the constants of the enclosing graphs, `outer_small` the small ones among them, `outer_types` the
    element types known there.
    """
    types = {**outer_types, **{name: t.dtype for name, t in value_types(typed).items()}}
    sizes = {t.name: math.prod(t.dims) for t in graph.initializer}
    graph_inputs = {v.name for v in graph.input}
    constants = outer | (sizes.keys() - graph_inputs)
    sizes |= {v.name: size for v in graph.value_info if (size := _size(v.type)) is not None}
    small = outer_small | {t.name for t in graph.initializer if sizes[t.name] <= SMALL}
    on_host: set[str] = set()
    shape_values: set[str] = set()

    def near(value: str) -> bool:
        return value in graph_inputs or value in small

    for node, like in zip(graph.node, typed.node, strict=True):
        inputs = {v for v in node.input if v}
        if node.op_type == ops.Constant and not node.domain:
            constants |= {node.output[0]}
            small |= {node.output[0]} if _held(node) <= SMALL else set()
        elif inputs and inputs <= constants and not is_random(node) and not any(True for _ in bodies(node)):
            # ONNX Runtime folds it before it places nodes. A constant of unknown size may be small.
            constants |= {*node.output}
            small |= {v for v in node.output if sizes.get(v, 0) <= SMALL}
        elif leaves_on_host(node.op_type, node.domain, node.input, on_host, near, lambda v: types.get(v, 0)):
            on_host.update(node.output)
            if node.domain == DOMAIN:
                shape_values.add(node.op_type)
        for body, typed_body in zip(bodies(node), bodies(like), strict=True):
            shape_values |= _found(body, typed_body, constants, small, types)
    return shape_values


def _size(kind: onnx.TypeProto) -> int | None:
    """Return the number of elements of a value of this type; None if unknown."""
    dims = kind.tensor_type.shape.dim
    is_static = kind.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims)
    return math.prod(d.dim_value for d in dims) if is_static else None


def _held(node: onnx.NodeProto) -> int:
    """Return the number of elements of a Constant."""
    value = onnx.helper.get_attribute_value(node.attribute[0])
    if isinstance(value, onnx.TensorProto):
        return math.prod(value.dims)
    return len(value) if isinstance(value, Sequence) and not isinstance(value, bytes) else 1
