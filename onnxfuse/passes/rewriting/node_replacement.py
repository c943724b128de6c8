"""Shared helpers of passes that substitute nodes."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import NodeProto, helper

from onnxfuse.graph.graph import Graph, Node

AXES_ARE_READ = 13
"""The operator set from which Unsqueeze, Squeeze and Split read what attributes said before."""

Written = Callable[[Graph, Node], list[NodeProto] | None]
"""Returns what stands in the place of a node, None where it stays."""


def replace_each(graph: Graph, written: Mapping[str, Written]) -> bool:
    """Write what stands for each node of ONNX's own, by its operator; return whether there was any."""
    changed = False
    for node in [n for n in graph.nodes if n.op in written and not n.domain]:
        nodes = written[node.op](graph, node)
        if nodes is not None:
            graph.replace([node], [Node(n) for n in nodes])
            changed = True
    return changed


def passing_on(node: Node, source: str) -> Node:
    """Return what passes `source` on in the place of a node of one output."""
    return Node(NodeProto(name=node.name, op_type="Identity", input=[source], output=node.outputs))


def fresh_constant(graph: Graph, base: str, array: np.ndarray) -> str:
    """Add a constant whose name begins with `base`, and return the name."""
    name = graph.fresh(base)
    graph.add_constant(name, array)
    return name


def along_one(graph: Graph, op: str, values: Sequence[str], axis: int, base: str) -> tuple[list[NodeProto], list[str]]:
    """Return the nodes that put an axis of 1 into each value (Unsqueeze) or take it out (Squeeze), and their names."""
    found = [graph.fresh(f"{base}.apart_{i}") for i in range(len(values))]
    if graph.opset < AXES_ARE_READ:
        return [helper.make_node(op, [v], [o], o, axes=[axis]) for v, o in zip(values, found, strict=True)], found
    axes = fresh_constant(graph, f"{base}.axis", np.array([axis], np.int64))
    return [helper.make_node(op, [v, axes], [o], o) for v, o in zip(values, found, strict=True)], found
