"""Shared helpers of passes that analyze Slice ranges."""

from onnxfuse.graph.graph import Graph, Node


def slice_range(graph: Graph, node: Node) -> tuple[int, int, int] | None:
    """Return the axis of a Slice, and from where up to where it cuts, as its constants say; from the end below 0.

    None of a Slice along several axes, in steps of more than 1, or by numbers that are not known.
    """
    numbers = [n.reshape(-1).tolist() for v in node.inputs[1:] if (n := graph.constant(v)) is not None and n.size == 1]
    if len(numbers) != len(node.inputs) - 1 or len(numbers) < 3:
        return None
    (start,), (end,), (axis,), *steps = numbers
    return (axis, start, end) if steps in ([], [[1]]) else None


def split_at(graph: Graph, node: Node, axis: int) -> list[tuple[int, int]]:
    """Return from where up to where along its axis the outputs of a Split are, up to the first of an open extent."""
    found, end = list[tuple[int, int]](), 0
    for value in node.outputs:
        shape = graph.type(value).shape
        if shape is None or not isinstance(extent := shape[axis], int):
            break
        found.append((end, end + extent))
        end += extent
    return found
