"""Shared helpers of passes that analyze Slice ranges."""

from onnxfuse.graph.graph import Graph, Node


def slice_range(graph: Graph, node: Node) -> tuple[int, int, int] | None:
    """Return the axis of a Slice with its start and end, from its constants; negative indices count from the end.

    Return None for several axes, steps other than 1, or unknown operands.
    """
    numbers = [n.reshape(-1).tolist() for v in node.inputs[1:] if (n := graph.constant(v)) is not None and n.size == 1]
    if len(numbers) != len(node.inputs) - 1 or len(numbers) < 3:
        return None
    (start,), (end,), (axis,), *steps = numbers
    return (axis, start, end) if steps in ([], [[1]]) else None


def split_at(graph: Graph, node: Node, axis: int) -> list[tuple[int, int]]:
    """Return the start and end of a Split's outputs along its axis, up to the first dynamic extent."""
    ranges, end = list[tuple[int, int]](), 0
    for value in node.outputs:
        shape = graph.type(value).shape
        if shape is None or not isinstance(extent := shape[axis], int):
            break
        ranges.append((end, end + extent))
        end += extent
    return ranges
