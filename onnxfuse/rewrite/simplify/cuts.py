"""What steps share that read cuts."""

from onnxfuse.model.graph import Graph, Node


def one_cut(graph: Graph, node: Node) -> tuple[int, int, int] | None:
    """Return the axis of a Slice, and from where up to where it cuts, as its constants say; from the end below 0.

    None of a Slice along several axes, in steps of more than 1, or by numbers that are not known.
    """
    numbers = [n.reshape(-1).tolist() for v in node.inputs[1:] if (n := graph.constant(v)) is not None and n.size == 1]
    if len(numbers) != len(node.inputs) - 1 or len(numbers) < 3:
        return None
    (start,), (end,), (axis,), *steps = numbers
    return (axis, start, end) if steps in ([], [[1]]) else None


def split_at(graph: Graph, node: Node, axis: int) -> list[tuple[int, int] | None]:
    """Return from where up to where along its axis each output of a Split is, None from one on whose extent is open."""
    found, end = list[tuple[int, int] | None](), 0
    for value in node.outputs:
        shape = graph.type(value).shape
        extent = None if shape is None or None in found else shape[axis]
        start, end = end, end + extent if isinstance(extent, int) else end
        found.append((start, end) if isinstance(extent, int) else None)
    return found
