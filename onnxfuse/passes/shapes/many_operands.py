"""Split a Sum of more operands than a kernel reads into partial sums, each of which fuses with its producers.

Frameworks write the terms of a series, the heads of an ensemble or the levels of a pyramid as one Sum.
"""

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.passes.rewriting.node_replacement import fresh_constant, replace_each
from onnxfuse.shapes.extents import broadcast
from onnxfuse.shapes.types import ValueType

MOST = 12
"""Maximum operands of a node: as many tensors as an elementwise kernel reads."""

GROUP = 4
"""Operands per partial node: a growing kernel can read a group and still absorb its producers."""

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def split_many_operands(graph: Graph) -> bool:
    """Rewrite each Sum, Mean, Max and Min of more than `MOST` operands as several; return whether there was one.

    # Sum(a, ..., p) -> Sum(Sum(a, ..., d), Sum(e, ..., h), Sum(i, ..., l), Sum(m, ..., p))
    """
    return replace_each(graph, {ops.Sum: _grouped, ops.Max: _grouped, ops.Min: _grouped, ops.Mean: _mean})


def _grouped(graph: Graph, node: Node) -> list[NodeProto] | None:
    if len(node.inputs) <= MOST:
        return None
    nodes = list[NodeProto]()
    last = _few(graph, node, node.op, node.inputs, nodes)
    return [*nodes, helper.make_node(node.op, last, node.outputs, node.proto.name)]


def _few(graph: Graph, node: Node, op: str, parts: Sequence[str], nodes: list[NodeProto]) -> Sequence[str]:
    """Add nodes that reduce values to at most `GROUP`, and return those."""
    while len(parts) > GROUP:
        groups = [parts[i : i + GROUP] for i in range(0, len(parts), GROUP)]
        parts = [_of(graph, node, op, group, nodes) for group in groups]
    return parts


def _mean(graph: Graph, node: Node) -> list[NodeProto] | None:
    """Rewrite a mean as the sum of its groups' means, each weighted by its share: no sum overflows the type's range."""
    count, dtype = len(node.inputs), graph.type(node.outputs[0]).dtype
    if count <= MOST or dtype not in FLOATS:
        return None
    nodes, terms = list[NodeProto](), list[str]()
    for start in range(0, count, GROUP):
        group = node.inputs[start : start + GROUP]
        mean = _of(graph, node, ops.Mean, group, nodes)
        part = np.array(len(group) / count, helper.tensor_dtype_to_np_dtype(dtype))
        share = fresh_constant(graph, f"{mean}.share", part)
        terms.append(_of(graph, node, ops.Mul, [mean, share], nodes))
    last = _few(graph, node, ops.Sum, terms, nodes)
    return [*nodes, helper.make_node(ops.Sum, last, node.outputs, node.proto.name)]


def _of(graph: Graph, node: Node, op: str, values: Sequence[str], nodes: list[NodeProto]) -> str:
    """Add a node over some of the values to `nodes`, and return its output."""
    if len(values) == 1:
        return values[0]
    name = graph.fresh(f"{node.outputs[0]}.some")
    shape = broadcast([graph.type(v).shape for v in values])
    graph.types[name] = ValueType(graph.type(node.outputs[0]).dtype, shape)
    nodes.append(helper.make_node(op, values, [name], name))
    return name
