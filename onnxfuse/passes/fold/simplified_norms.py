"""Rewrite ONNX Runtime's SimplifiedLayerNormalization as the RMS norm that rules match.

ONNX Runtime's own tools write it, in the default domain; ONNX has RMSNormalization only since operator set 23.
"""

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import schema
from onnxfuse.passes.rewriting.node_replacement import fresh_constant, replace_each
from onnxfuse.shapes.types import ValueType

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
AXES_ARE_READ = 18
"""First operator set in which ReduceMean reads its axes as an input."""


def expand_simplified_norms(graph: Graph) -> bool:
    """Rewrite each SimplifiedLayerNormalization as an RMS norm; return whether there was one."""
    return replace_each(graph, {ops.SimplifiedLayerNormalization: _written})


def _written(graph: Graph, node: Node) -> list[NodeProto] | None:
    if len(node.inputs) != 2 or any(node.outputs[1:]):
        return None
    x, scale = (graph.type(v) for v in node.inputs)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.proto.attribute}
    rank, axis = x.rank, attributes.get("axis", -1)
    known = x.dtype == scale.dtype and x.dtype in (*HALF, TensorProto.FLOAT)
    if rank is None or not known or axis not in (-1, rank - 1) or attributes.get("stash_type", 1) != TensorProto.FLOAT:
        return None
    epsilon = float(attributes.get("epsilon", 1e-5))
    if schema.find(ops.RMSNormalization, "", graph.opset) is not None:
        return [helper.make_node(ops.RMSNormalization, node.inputs, node.outputs, node.name, axis=-1, epsilon=epsilon)]
    return _spelled_out(graph, node, x, epsilon)


def _spelled_out(graph: Graph, node: Node, x: ValueType, epsilon: float) -> list[NodeProto]:
    """Return x / sqrt(mean(x * x) + epsilon) * scale, computed in float32 except for the last product."""
    nodes, half = list[NodeProto](), x.dtype in HALF
    wide, narrow = ValueType(TensorProto.FLOAT, x.shape), ValueType(TensorProto.FLOAT, (*(x.shape or ())[:-1], 1))

    def add(op: str, inputs: list[str], type_: ValueType, **attributes: Any) -> str:
        name = graph.fresh(f"{node.outputs[0]}.{op.lower()}")
        graph.types[name] = type_
        nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def number(value: np.ndarray, what: str) -> str:
        return fresh_constant(graph, f"{node.outputs[0]}.{what}", value)

    source = add(ops.Cast, [node.inputs[0]], wide, to=TensorProto.FLOAT) if half else node.inputs[0]
    square = add(ops.Pow, [source, number(np.array(2, np.float32), "two")], wide)
    if graph.opset < AXES_ARE_READ:
        mean = add(ops.ReduceMean, [square], narrow, axes=[-1], keepdims=1)
    else:
        mean = add(ops.ReduceMean, [square, number(np.array([-1], np.int64), "axis")], narrow, keepdims=1)
    root = add(ops.Sqrt, [add(ops.Add, [mean, number(np.array(epsilon, np.float32), "epsilon")], narrow)], narrow)
    normed = add(ops.Div, [source, root], wide)
    normed = add(ops.Cast, [normed], x, to=x.dtype) if half else normed
    return [*nodes, helper.make_node(ops.Mul, [normed, node.inputs[1]], node.outputs, node.name)]
