"""Split a Sum of more operands than a kernel reads into partial sums, each of which fuses with its producers.

Frameworks write the terms of a series, the heads of an ensemble or the levels of a pyramid as one Sum.
"""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.shapes.extents import broadcast
from onnxfuse.shapes.types import ValueType

MOST = 12
"""Maximum operands of a node: as many tensors as an elementwise kernel reads."""

GROUP = 4
"""Operands per partial node: a growing kernel can read a group and still absorb its producers."""

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


@graph_pass
def split_many_operands(graph: Graph) -> bool:
    """Splits a Sum, Mean, Max or Min of many operands into several that fuse with their producers.

    # Sum(a, ..., p) -> Sum(Sum(a, ..., d), Sum(e, ..., h), Sum(i, ..., l), Sum(m, ..., p))
    """
    return rewrite_each(graph, {ops.Sum: _grouped, ops.Max: _grouped, ops.Min: _grouped, ops.Mean: _mean})


def _grouped(node: Node, to: Rewriter) -> bool:
    if len(node.inputs) <= MOST:
        return False
    to.add(node.op, *_few(node, node.op, node.inputs, to), output=node.outputs)
    return True


def _few(node: Node, op: str, parts: Sequence[str], to: Rewriter) -> Sequence[str]:
    """Add nodes that reduce values to at most `GROUP`, and return those."""
    while len(parts) > GROUP:
        groups = [parts[i : i + GROUP] for i in range(0, len(parts), GROUP)]
        parts = [_of(node, op, group, to) for group in groups]
    return parts


def _mean(node: Node, to: Rewriter) -> bool:
    """Rewrite a mean as the sum of its groups' means, each weighted by its share: no sum overflows the type's range."""
    count, dtype, terms = len(node.inputs), to.graph.type(node.outputs[0]).dtype, list[str]()
    if count <= MOST or dtype not in FLOATS:
        return False
    for start in range(0, count, GROUP):
        group = node.inputs[start : start + GROUP]
        mean = _of(node, ops.Mean, group, to)
        share = to.constant(f"{mean}.share", np.array(len(group) / count, helper.tensor_dtype_to_np_dtype(dtype)))
        terms.append(_of(node, ops.Mul, [mean, share], to))
    to.add(ops.Sum, *_few(node, ops.Sum, terms, to), output=node.outputs)
    return True


def _of(node: Node, op: str, values: Sequence[str], to: Rewriter) -> str:
    """Add a node over some of the values, and return its output."""
    if len(values) == 1:
        return values[0]
    shape, dtype = broadcast([to.graph.type(v).shape for v in values]), to.graph.type(node.outputs[0]).dtype
    return to.add(op, *values, hint=f"{node.outputs[0]}.some", type_=ValueType(dtype, shape))
