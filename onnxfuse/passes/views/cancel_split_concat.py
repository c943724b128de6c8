"""Cancel a Concat of adjacent slices: slices of a value concatenated in order are the value.

Cross stage partial nets (YOLO's C2f) split an image's channels in two halves, send one through convolutions, and
concatenate both with all intermediate results.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.ops import Trait
from onnxfuse.passes.views.slice_ranges import slice_range, split_at


@dataclass(frozen=True)
class _Slice:
    """A value as a slice of another one along an axis: from `start` to `end`."""

    whole: str
    start: int
    end: int


@graph_pass
def cancel_split_concat(graph: Graph) -> bool:
    """Replaces a Concat of adjacent parts of a value by the value."""
    return rewrite_each(graph, {ops.Concat: _joined})


def _joined(concat: Node, to: Rewriter) -> bool:
    graph, rank = to.graph, to.graph.type(concat.outputs[0]).rank
    if rank is None:
        return False
    axis = int(str(graph.attributes(concat)["axis"])) % rank
    inputs, rest = list[str](), list(concat.inputs)
    while rest:
        many, whole = _all_parts(graph, rest, axis)
        inputs.append(whole if many else rest[0])
        del rest[: max(many, 1)]
    if len(inputs) == len(concat.inputs):
        return False
    if len(inputs) == 1:
        to.replace(concat.outputs[0], inputs[0])
    else:
        to.copy(concat, inputs)
    return True


def _all_parts(graph: Graph, values: Sequence[str], axis: int) -> tuple[int, str]:
    """Return how many of the first values form one whole value in order, and that value; 0 if there is none."""
    first = _part(graph, values[0], axis)
    if first is None or first.start:
        return 0, ""
    extent, end, many = (graph.type(first.whole).shape or ())[axis], first.end, 1
    while end != extent and many < len(values):
        next_one = _part(graph, values[many], axis)
        if next_one is None or next_one.whole != first.whole or next_one.start != end:
            return 0, ""
        end, many = next_one.end, many + 1
    return (many, first.whole) if end == extent and many > 1 else (0, "")


def _part(graph: Graph, value: str, axis: int) -> _Slice | None:
    """Return the source and range of a value that is a slice along `axis` alone; None if it is not known to be one."""
    node = graph.producer(value)
    if node is None or not (node.has(Trait.SELECTS) and node.has(Trait.NAMES_AXES)):
        return None
    shape = graph.type(node.inputs[0]).shape
    if shape is None or not isinstance(extent := shape[axis], int):
        return None
    if node.op == ops.Split:
        if int(str(graph.attributes(node)["axis"])) % len(shape) != axis:
            return None
        bounds = dict(zip(node.outputs, split_at(graph, node, axis), strict=False)).get(value)
        return None if bounds is None else _Slice(node.inputs[0], *bounds)
    range_ = slice_range(graph, node)
    if range_ is None or range_[0] % len(shape) != axis:
        return None
    first, last, _ = slice(*range_[1:]).indices(extent)
    return _Slice(node.inputs[0], first, last)
