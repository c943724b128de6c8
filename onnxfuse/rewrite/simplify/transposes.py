"""A Transpose of a Transpose is one, or none."""

import onnx

from onnxfuse.model import channels
from onnxfuse.model.attributes import set_attribute
from onnxfuse.model.graph import Graph, Node


def merge_transposes(graph: Graph) -> bool:
    """Let a Transpose read what the Transpose before it reads; return whether any did.

    The one before stays where others read it. What turns every axis back to where it was is an Identity; but an image
    that is turned channels last and back is how the layout is written: the kernels behind it take both.
    """
    changed = False
    for node in [n for n in graph.nodes if _turns(n)]:
        before = graph.producer(node.inputs[0])
        if before is None or not _turns(before):
            continue
        second, first = order_of(graph, node), order_of(graph, before)
        if second is None or first is None or len(first) != len(second):
            continue
        order = [first[axis] for axis in second]
        same = order == sorted(order)
        if same and channels.turns_first(node):
            continue
        new = onnx.NodeProto()
        new.CopyFrom(node.proto)
        new.input[0] = before.inputs[0]
        set_attribute(new, "perm", None if same else order)
        if same:
            new.op_type = "Identity"
        graph.replace([node], [Node(new)])
        changed = True
    return changed


def _turns(node: Node) -> bool:
    return node.op == "Transpose" and not node.domain and node.order >= 0


def order_of(graph: Graph, node: Node) -> list[int] | None:
    """Return the axes of what a Transpose reads in their new order, None where their number is not known."""
    written = node.written.get("perm")
    if isinstance(written, list | tuple):
        return [int(axis) for axis in written]
    shape = graph.type(node.inputs[0]).shape
    return None if shape is None else list(range(len(shape)))[::-1]
