"""Concrete shapes of all values of a model for given input shapes, including values inside fused ops."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import NodeProto, numpy_helper

from onnxfuse import ops
from onnxfuse.graph.evaluate import REFUSALS, evaluate, is_foldable
from onnxfuse.graph.normalize import normalize
from onnxfuse.model.fused import DOMAIN, FusedOp, fused_ops
from onnxfuse.model.host_values import SHAPE_READERS, SMALL, computed_on_host
from onnxfuse.model.schema import opset_of
from onnxfuse.model.validate import bits
from onnxfuse.shapes.extent_values import at_sizes, name_sizes
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.size_bounds import result_elements
from onnxfuse.shapes.types import UNKNOWN, ValueType, value_types

Shapes = Mapping[str, tuple[int, ...]]
"""Shape of each graph input."""

FOLD_LIMIT = 64
"""Largest tensor that is folded here: Reshape targets, Slice bounds, and the like."""


@dataclass(frozen=True)
class ExpandedNode:
    """A node of the main graph, and the plain nodes that it represents."""

    proto: NodeProto
    op: FusedOp | None
    """The fused op; None for a plain operator."""
    body: tuple[NodeProto, ...]
    """A fused op's body, its values under the names used in `Sized.types`; empty for a plain operator."""


@dataclass(frozen=True)
class Sized:
    """A model at given input shapes."""

    nodes: tuple[ExpandedNode, ...]
    types: Mapping[str, ValueType]
    constants: frozenset[str]
    """Weights, and the values of Constant nodes."""
    inputs: frozenset[str]
    outputs: frozenset[str]
    on_host: frozenset[str]
    """Values computed from shapes, which ONNX Runtime keeps on the CPU (`model.host`)."""

    def bytes_of(self, value: str) -> int | None:
        """Return the bytes of a value; None if its shape or type is unknown."""
        type_ = self.types.get(value, UNKNOWN)
        extents = type_.static_shape
        return None if extents is None or not type_.dtype else math.ceil(math.prod(extents) * bits(type_.dtype) / 8)

    def extents(self, value: str) -> tuple[int, ...] | None:
        """Return the shape of a value; None if it is not fully known."""
        return self.types.get(value, UNKNOWN).static_shape


def sized(model: onnx.ModelProto, shapes: Shapes) -> Sized:
    """Infer all shapes of `model` from those of its inputs; the model is not changed.

    Shapes come from ONNX's inference on the graph with all functions inlined, else from the declarations in the file.
    Raises ModelError.
    """
    weights = {t.name for t in model.graph.initializer}
    light = infer(model, defaults=True)
    normalize(light)
    declared = value_types(light.graph)
    sizes = _numbers(light.graph.input, shapes)
    nodes = tuple(_placed(light))
    del light.graph.value_info[:], light.graph.node[:], light.functions[:]
    light.graph.node.extend(n for expanded in nodes for n in (expanded.body or (expanded.proto,)))
    for value in light.graph.input:
        if value.name in shapes:
            type_ = value.type.tensor_type.elem_type
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, type_, shapes[value.name]))
    for value in light.graph.output:
        value.type.tensor_type.ClearField("shape")
    types = {name: _in_numbers(t, sizes) for name, t in declared.items()}
    inferred = infer(light)
    while _fold(light, inferred):
        inferred = infer(light)
    for name, t in value_types(inferred.graph).items():
        types[name] = _in_numbers(t, sizes) if t.shape is not None else types.get(name, t)
    constants = weights | {
        v for n in nodes for p in (n.body or (n.proto,)) if p.op_type == ops.Constant for v in p.output
    }
    inputs = frozenset(i.name for i in model.graph.input) - weights
    return Sized(
        nodes,
        types,
        frozenset(constants),
        inputs,
        frozenset(o.name for o in model.graph.output),
        _on_host([n.proto for n in nodes], types, constants, inputs),
    )


def _on_host(
    nodes: Sequence[NodeProto], types: Mapping[str, ValueType], constants: Collection[str], inputs: Collection[str]
) -> frozenset[str]:
    def near(value: str) -> bool:
        shape = types.get(value, UNKNOWN).shape
        count = None if shape is None else math.prod(d for d in shape if isinstance(d, int))
        return value in inputs or (value in constants and count is not None and count <= SMALL)

    return computed_on_host(nodes, near, lambda v: types.get(v, UNKNOWN).dtype)


def _fold(model: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
    """Replace nodes that compute small integers from shapes by constants; return whether there were any.

    ONNX's inference follows such arithmetic only in part: not through the bounds of a Slice.
    """
    types = value_types(inferred.graph)
    if all(t.static_shape is not None for t in types.values()):
        return False
    internal = (t for t in model.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL)
    tensors = [t for t in internal if t.data_type != onnx.TensorProto.STRING]
    constants = {t.name: numpy_helper.to_array(t) for t in tensors if math.prod(t.dims) <= FOLD_LIMIT}
    opset = opset_of(model)
    remaining = []
    for node in model.graph.node:
        value = _value(node, constants, types, opset)
        if value is None:
            remaining.append(node)
        else:
            constants[node.output[0]] = value
            model.graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
    changed = len(remaining) < len(model.graph.node)
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in remaining]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return changed


def _value(
    node: NodeProto, constants: Mapping[str, np.ndarray], types: Mapping[str, ValueType], opset: int
) -> np.ndarray | None:
    """Return the integers or booleans that `node` computes; None if unknown or too many."""
    foldable = is_foldable(node.op_type, node.domain) or (node.op_type == ops.Constant and not node.domain)
    if len(node.output) != 1 or not foldable:
        return None
    inputs = dict(constants)
    if node.op_type in SHAPE_READERS:
        shape = types.get(node.input[0], UNKNOWN).static_shape
        if shape is None:
            return None
        inputs[node.input[0]] = np.broadcast_to(np.float32(0), shape)
    if any(v not in inputs for v in node.input if v):
        return None
    arrays = {v: inputs[v] for v in node.input if v}
    elements = result_elements(node, arrays)
    if elements is None or elements > FOLD_LIMIT:
        return None
    try:
        (value,) = evaluate([node], arrays, node.output, opset)
    except REFUSALS:
        return None
    return value if value.dtype.kind in "iub" and value.size <= FOLD_LIMIT else None


def _placed(model: onnx.ModelProto) -> Iterator[ExpandedNode]:
    """Yield the nodes of the main graph in order; values inside a body get unique names."""
    fused = fused_ops(model)
    for index, proto in enumerate(model.graph.node):
        own = NodeProto()
        own.CopyFrom(proto)
        op = fused[proto.op_type] if proto.domain == DOMAIN else None
        if op is None:
            yield ExpandedNode(own, None, ())
            continue
        names = {"": "", **dict(zip(op.body.input, proto.input, strict=False))}
        names.update(zip(op.body.output, proto.output, strict=False))
        body = []
        for inner in op.body.node:
            copy = NodeProto()
            copy.CopyFrom(inner)
            for values in (copy.input, copy.output):
                for n, value in enumerate(values):
                    values[n] = names.setdefault(value, f"{proto.output[0]}#{index}.{value}")
            body.append(copy)
        yield ExpandedNode(own, op, tuple(body))


def _numbers(inputs: Iterable[onnx.ValueInfoProto], shapes: Shapes) -> dict[str, int]:
    """Return the integer for each dimension name of the inputs."""
    sizes: dict[str, int] = {}
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        for dim, extent in zip(dims, shapes.get(value.name, ()), strict=False):
            if dim.dim_param:
                sizes[dim.dim_param] = extent
    return name_sizes(sizes)


def _in_numbers(type_: ValueType, sizes: Mapping[str, int]) -> ValueType:
    if type_.shape is None:
        return type_
    return replace(type_, shape=tuple(at_sizes(d, sizes) for d in type_.shape))
