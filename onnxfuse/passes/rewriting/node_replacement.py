"""Shared helpers of passes that substitute nodes."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import NodeProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node

AXES_ARE_READ = 13
"""First operator set in which Unsqueeze, Squeeze and Split read as inputs what were attributes before."""

Written = Callable[[Graph, Node], list[NodeProto] | None]
"""Returns the replacement of a node, None to leave it unchanged."""


def replace_each(graph: Graph, written: Mapping[str, Written]) -> bool:
    """Replace each standard ONNX node by what its operator's function returns; return whether any were replaced."""
    changed = False
    for node in [n for n in graph.nodes if n.op in written and not n.domain]:
        nodes = written[node.op](graph, node)
        if nodes is not None:
            graph.replace([node], [Node(n) for n in nodes])
            changed = True
    return changed


def passing_on(node: Node, source: str) -> Node:
    """Return the Identity that forwards `source` in place of a one-output node."""
    return Node(NodeProto(name=node.name, op_type=ops.Identity, input=[source], output=node.outputs))


def fresh_constant(graph: Graph, base: str, array: np.ndarray) -> str:
    """Add a constant whose name begins with `base`, and return the name."""
    name = graph.fresh(base)
    graph.add_constant(name, array)
    return name


def along_one(graph: Graph, op: str, values: Sequence[str], axis: int, base: str) -> tuple[list[NodeProto], list[str]]:
    """Return nodes that add a unit axis to each value (Unsqueeze) or remove it (Squeeze), and their outputs."""
    found = [graph.fresh(f"{base}.apart_{i}") for i in range(len(values))]
    if graph.opset < AXES_ARE_READ:
        return [helper.make_node(op, [v], [o], o, axes=[axis]) for v, o in zip(values, found, strict=True)], found
    axes = fresh_constant(graph, f"{base}.axis", np.array([axis], np.int64))
    return [helper.make_node(op, [v, axes], [o], o) for v, o in zip(values, found, strict=True)], found
