"""The same model in a wider floating-point type: what the original would compute with more digits."""

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, numpy_helper

from onnxfuse.model.io import without_weights

NARROWER: dict[int, tuple[int, ...]] = {
    TensorProto.FLOAT: (TensorProto.FLOAT16, TensorProto.BFLOAT16),
    TensorProto.DOUBLE: (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT),
}
"""The types that become the key."""

TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision")
"""Attributes that hold an element type. `stash_type` is not among them: evaluators compute in the wider type anyway."""


FLOAT_BY_DEFAULT = {
    "HannWindow": "output_datatype",
    "HammingWindow": "output_datatype",
    "BlackmanWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
}
"""Operators that give float32 where the attribute is not written."""


def widened(model: onnx.ModelProto, to: int, *, weights: bool = True) -> onnx.ModelProto:
    """Return a copy of `model` whose narrower floats are all of type `to`: tensors, declared types, and Cast targets.

    So a Cast between two float types inside the model rounds nothing. Without `weights` the initializers are left out.
    """
    narrow = NARROWER[to]
    copy = without_weights(model, lambda tensor: widen_tensor(tensor, to) if weights else None)
    _widen_graph(copy.graph, to, narrow)
    for function in copy.functions:
        for info in function.value_info:
            _widen_type(info.type, to, narrow)
        _widen_nodes(function.node, to, narrow)
    return copy


def is_narrower(model: onnx.ModelProto, than: int) -> bool:
    """Return whether anything would be another in `widened(model, than)`: a tensor, a declared type, a Cast."""
    if any(t.data_type in NARROWER[than] for t in model.graph.initializer):
        return True
    return widened(model, than, weights=False) != without_weights(model, lambda _: None)


def widen_tensor(tensor: TensorProto, to: int) -> TensorProto:
    """Return `tensor` with the element type `to` if it holds narrower floats, and itself otherwise. Exact."""
    if tensor.data_type not in NARROWER[to]:
        return tensor
    dtype = np.float64 if to == TensorProto.DOUBLE else np.float32
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name)


def _widen_graph(graph: GraphProto, to: int, narrow: tuple[int, ...]) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info):
        _widen_type(info.type, to, narrow)
    for tensor in graph.initializer:
        tensor.CopyFrom(widen_tensor(tensor, to))
    for sparse in graph.sparse_initializer:
        sparse.values.CopyFrom(widen_tensor(sparse.values, to))
    _widen_nodes(graph.node, to, narrow)


def _widen_nodes(nodes: "list[NodeProto]", to: int, narrow: tuple[int, ...]) -> None:
    for node in nodes:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(onnx.helper.make_attribute("value", numpy_helper.from_array(np.zeros(1, np.float32))))
        unsaid = FLOAT_BY_DEFAULT.get(node.op_type)
        if unsaid is not None and all(a.name != unsaid for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute(unsaid, TensorProto.FLOAT))
        for attribute in node.attribute:
            _widen_attribute(node, attribute, to, narrow)


def _widen_attribute(node: NodeProto, attribute: AttributeProto, to: int, narrow: tuple[int, ...]) -> None:
    if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        # Constant<value_float> -> Constant<value>: only a tensor can hold the wider type.
        value = np.asarray(onnx.helper.get_attribute_value(attribute), np.float32)
        attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(value)))
    if attribute.name in TYPE_ATTRIBUTES and attribute.i in narrow:
        attribute.i = to
    if attribute.HasField("t"):
        attribute.t.CopyFrom(widen_tensor(attribute.t, to))
    if attribute.HasField("g"):
        _widen_graph(attribute.g, to, narrow)
    for body in attribute.graphs:
        _widen_graph(body, to, narrow)


def _widen_type(proto: onnx.TypeProto, to: int, narrow: tuple[int, ...]) -> None:
    if proto.HasField("sequence_type"):
        _widen_type(proto.sequence_type.elem_type, to, narrow)
    elif proto.HasField("optional_type"):
        _widen_type(proto.optional_type.elem_type, to, narrow)
    elif proto.HasField("tensor_type") and proto.tensor_type.elem_type in narrow:
        proto.tensor_type.elem_type = to
