"""Axes of extent 1 that are taken out and put in again: what has its shape back is what it was.

Heads are squeezed away around an operator and put in again on its other side; where the operator has gone elsewhere, or
was none, the two stand behind one another. Reshapes stay: which axes they join and split the rules ask.
"""

import onnx

from onnxfuse.model.graph import Graph, Node
from onnxfuse.model.types import is_unknown

SINGLE = frozenset({"Squeeze", "Unsqueeze"})


def keep_single_axes(graph: Graph) -> bool:
    """Let what reads a Squeeze or Unsqueeze read what has its shape, before others of them; return whether any did.

    Those that others read stay for them.
    """
    changed = False
    for node in [n for n in graph.nodes if _is_single(n)]:
        source = _before(graph, node)
        if source is not None:
            same = onnx.NodeProto(name=node.name, op_type="Identity", input=[source], output=node.outputs)
            graph.replace([node], [Node(same)])
            changed = True
    return changed


def _is_single(node: Node) -> bool:
    return node.op in SINGLE and not node.domain


def _before(graph: Graph, node: Node) -> str | None:
    """Return the value furthest before a node, over others of its kind, that has the shape it makes; None without."""
    shape = graph.type(node.outputs[0]).shape
    if shape is None or any(map(is_unknown, shape)):
        return None
    found, other = None, graph.producer(node.inputs[0])
    while other is not None and _is_single(other):
        value = other.inputs[0]
        if graph.type(value).shape == shape:
            found = value
        other = graph.producer(value)
    return found
