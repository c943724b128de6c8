"""Images with their channels first, as ONNX has them, and last, as kernels like them."""

from onnxfuse.model.graph import Node

LAST = (0, 2, 3, 1)
"""The permutation of a Transpose from channels first to channels last."""
FIRST = (0, 3, 1, 2)
"""The permutation back; also the axis of the channels-last form where each axis of the channels-first form stands."""


def perm_of(node: Node) -> tuple[int, ...] | None:
    """Return the permutation that a Transpose writes, None for another operator."""
    if node.op != "Transpose" or node.domain:
        return None
    return next((tuple(a.ints) for a in node.proto.attribute if a.name == "perm"), None)
