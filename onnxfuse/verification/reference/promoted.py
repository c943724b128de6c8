"""Promote a model to a wider floating-point type: its results with more precision, or rounded as often as it is defined
to."""

from functools import cache

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfuse import ops
from onnxfuse.files.io import without_weights
from onnxfuse.graph.graph import bodies
from onnxfuse.model import schema
from onnxfuse.model.custom_ops import is_custom
from onnxfuse.model.functions import bind_attributes, called, functions_of
from onnxfuse.model.nested import every_name
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from onnxfuse.support.errors import UsageError
from onnxfuse.verification.run import random_numbers

NARROWER: dict[int, tuple[int, ...]] = {
    TensorProto.FLOAT: (TensorProto.FLOAT16, TensorProto.BFLOAT16),
    TensorProto.DOUBLE: (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT),
}
"""The types promoted to the key. Types of eight bits and fewer are excluded: rounding to them is part of the model."""

NARROWER_ARRAYS = {
    np.dtype(helper.tensor_dtype_to_np_dtype(wide)): frozenset(map(helper.tensor_dtype_to_np_dtype, narrow))
    for wide, narrow in NARROWER.items()
}
"""The same for arrays."""

TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision")
"""Attributes that hold an element type. `stash_type` is not among them: evaluators compute in the wider type anyway."""


def promoted(model: onnx.ModelProto, to: int, *, weights: bool = True) -> onnx.ModelProto:
    """Return a copy of `model` with narrower floats promoted to `to`: tensors, declared types, and Cast targets.

    So a Cast between two float types inside the model rounds nothing. Without `weights` the initializers are omitted.
    """
    narrow = NARROWER[to]
    copy = without_weights(model, lambda tensor: promote_tensor(tensor, to) if weights else None)
    bind_attributes(copy)  # a Cast's target type may be an attribute reference of the function
    _promote_graph(copy.graph, to, narrow)
    if to == TensorProto.FLOAT and any(is_custom(node) for node in model.graph.node):
        _keep_types(copy, _halves(infer(model).graph))
    for function in copy.functions:
        for info in function.value_info:
            _promote_type(info.type, to, narrow)
        _promote_nodes(function.node, to, narrow)
    return copy


def _keep_types(copy: onnx.ModelProto, halves: dict[str, int]) -> None:
    """Insert Casts so that user operators read the half types they support, and their results become float32.

    The type of such a result is often unknown: a Cast to float32 accepts any.
    """
    functions = functions_of(copy)
    declared = {v.name for v in (*copy.graph.value_info, *copy.graph.output) if v.type.tensor_type.elem_type}
    used_names, nodes = every_name(copy.graph), list[NodeProto]()
    for node in copy.graph.node:
        if not is_custom(node) or called(node) in functions or not any(v in halves for v in node.input):
            nodes.append(node)
            continue
        for n, name in enumerate(node.input):
            if name in halves:
                node.input[n] = _unused(f"{name}.half", used_names)
                nodes.append(helper.make_node(ops.Cast, [name], [node.input[n]], to=halves[name]))
        nodes.append(node)
        for n, name in enumerate(node.output):
            if name and (name in halves or name not in declared):
                node.output[n] = _unused(f"{name}.half", used_names)
                nodes.append(helper.make_node(ops.Cast, [node.output[n]], [name], to=TensorProto.FLOAT))
    _replace(copy.graph, nodes)


def rounded(model: onnx.ModelProto, *, seed: int | None = None) -> onnx.ModelProto:
    """Return a float32 copy in which every float16 and bfloat16 value is rounded to its type after its node.

    That is how half-precision operators are defined: each reads and returns numbers of that type. ONNX Runtime's CPU
    provider has float32 kernels for most, and keeps float32 between them. Values of unknown type, and values inside
    functions, are not rounded.

    With a `seed`, a third of the elements are rounded, a third keep float32, and a third are moved by their own
    rounding error to the other side, drawn anew for each value: all of them are as close to the exact value as a
    rounded one. Numbers of the type, and what overflows it, stay. Raises UsageError before `random_numbers.SINCE`.
    """
    if seed is not None and schema.opset_of(model) < random_numbers.SINCE:
        raise UsageError(
            f"values cannot be moved in operator set {schema.opset_of(model)}", f"It takes {random_numbers.SINCE}."
        )
    types = infer(model)
    copy = promoted(model, TensorProto.FLOAT)
    _round_graph(copy.graph, _halves(types.graph), every_name(copy.graph), seed)
    return copy


def _halves(graph: GraphProto) -> dict[str, int]:
    """Return the half type of each value in a graph and its bodies that has one."""
    half_types = {n: t.dtype for n, t in value_types(graph).items() if t.dtype in NARROWER[TensorProto.FLOAT]}
    for node in graph.node:
        for body in bodies(node):
            half_types.update(_halves(body))
    return half_types


def _round_graph(graph: GraphProto, halves: dict[str, int], used_names: set[str], seed: int | None) -> None:
    nodes = []
    for node in graph.node:
        for body in bodies(node):
            _round_graph(body, halves, used_names, seed)
        nodes.append(node)
        if node.op_type == ops.Constant:
            continue  # Its number is representable already, and some kernels require a Constant.
        for n, name in enumerate(node.output):
            if name not in halves:
                continue
            exact, half = (_unused(f"{name}.{suffix}", used_names) for suffix in ("exact", "half"))
            node.output[n] = exact
            nodes.append(helper.make_node(ops.Cast, [exact], [half], to=halves[name]))
            if seed is None:
                nodes.append(helper.make_node(ops.Cast, [half], [name], to=TensorProto.FLOAT))
            else:
                nodes += _moved(exact, half, name, used_names, seed + len(nodes) * SPACING)
    _replace(graph, nodes)


SPACING = 7919
"""Distance of the seeds of two values."""


def _moved(exact: str, half: str, name: str, used_names: set[str], seed: int) -> list[NodeProto]:
    """Return the nodes from a value and its rounded form to what is within its rounding error, by random numbers."""
    names = ("near", "drawn", "by", "error", "off", "moved", "equal", "over", "fixed")
    near, drawn, by, error, off, moved, equal, over, fixed = (_unused(f"{name}.{n}", used_names) for n in names)
    return [
        helper.make_node(ops.Cast, [half], [near], to=TensorProto.FLOAT),
        *random_numbers.uniform_like(near, drawn, 0.0, 3.0, seed),
        helper.make_node(ops.Floor, [drawn], [by]),
        helper.make_node(ops.Sub, [exact, near], [error]),
        helper.make_node(ops.Mul, [by, error], [off]),
        helper.make_node(ops.Add, [near, off], [moved]),
        helper.make_node(ops.Equal, [near, exact], [equal]),
        helper.make_node(ops.IsInf, [near], [over]),
        helper.make_node(ops.Or, [equal, over], [fixed]),
        helper.make_node(ops.Where, [fixed, near, moved], [name]),
    ]


def _replace(graph: GraphProto, nodes: list[NodeProto]) -> None:
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _unused(name: str, used_names: set[str]) -> str:
    while name in used_names:
        name += "_"
    used_names.add(name)
    return name


def is_narrower(model: onnx.ModelProto, than: int) -> bool:
    """Return whether `promoted(model, than)` would change anything: a tensor, a declared type, a Cast."""
    if any(t.data_type in NARROWER[than] for t in model.graph.initializer):
        return True
    light = without_weights(model, lambda _: None)
    bind_attributes(light)
    return promoted(light, than, weights=False) != light


def promote_tensor(tensor: TensorProto, to: int) -> TensorProto:
    """Return `tensor` promoted to the element type `to` if it holds narrower floats, and itself otherwise. Exact."""
    if tensor.data_type not in NARROWER[to]:
        return tensor
    dtype = np.float64 if to == TensorProto.DOUBLE else np.float32
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name)


def _promote_graph(graph: GraphProto, to: int, narrow: tuple[int, ...]) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info):
        _promote_type(info.type, to, narrow)
    for tensor in graph.initializer:
        tensor.CopyFrom(promote_tensor(tensor, to))
    for sparse in graph.sparse_initializer:
        sparse.values.CopyFrom(promote_tensor(sparse.values, to))
    _promote_nodes(graph.node, to, narrow)


def _promote_nodes(nodes: "list[NodeProto]", to: int, narrow: tuple[int, ...]) -> None:
    for node in nodes:
        if node.op_type == ops.ConstantOfShape and not node.attribute:
            node.attribute.append(onnx.helper.make_attribute("value", numpy_helper.from_array(np.zeros(1, np.float32))))
        implicit = _float_by_default(node.op_type, node.domain) - {a.name for a in node.attribute}
        node.attribute.extend(onnx.helper.make_attribute(name, TensorProto.FLOAT) for name in sorted(implicit))
        for attribute in node.attribute:
            _promote_attribute(node, attribute, to, narrow)


@cache
def _float_by_default(op: str, domain: str) -> frozenset[str]:
    """Return the attributes that hold an element type, and mean float32 where they are not stated."""
    defaults = schema.defaults(op, domain, onnx.defs.onnx_opset_version())
    return frozenset(name for name in TYPE_ATTRIBUTES if defaults.get(name) == TensorProto.FLOAT)


def _promote_attribute(node: NodeProto, attribute: AttributeProto, to: int, narrow: tuple[int, ...]) -> None:
    if node.op_type == ops.Constant and attribute.name in ("value_float", "value_floats"):
        # Constant<value_float> -> Constant<value>: only a tensor can hold the wider type.
        value = np.asarray(onnx.helper.get_attribute_value(attribute), np.float32)
        attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(value)))
    # BitCast reinterprets bits of the type that it names.
    if attribute.name in TYPE_ATTRIBUTES and attribute.i in narrow and node.op_type != ops.BitCast:
        attribute.i = to
    if attribute.HasField("t"):
        attribute.t.CopyFrom(promote_tensor(attribute.t, to))
    if attribute.HasField("g"):
        _promote_graph(attribute.g, to, narrow)
    for body in attribute.graphs:
        _promote_graph(body, to, narrow)


def _promote_type(proto: onnx.TypeProto, to: int, narrow: tuple[int, ...]) -> None:
    if proto.HasField("sequence_type"):
        _promote_type(proto.sequence_type.elem_type, to, narrow)
    elif proto.HasField("optional_type"):
        _promote_type(proto.optional_type.elem_type, to, narrow)
    elif proto.HasField("tensor_type") and proto.tensor_type.elem_type in narrow:
        proto.tensor_type.elem_type = to
