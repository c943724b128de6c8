"""Cancel a Concat of adjacent slices: slices of a value concatenated in order are the value.

Cross stage partial nets (YOLO's C2f) split an image's channels in two halves, send one through convolutions, and
concatenate both with all intermediate results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    slices = _Slices(graph, int(str(graph.attributes(concat)["axis"])) % rank)
    inputs, at = list[str](), 0
    while at < len(concat.inputs):
        many, whole = slices.adjacent(concat.inputs, at)
        inputs.append(whole if many else concat.inputs[at])
        at += max(many, 1)
    if len(inputs) == len(concat.inputs):
        return False
    if len(inputs) == 1:
        to.replace(concat.outputs[0], inputs[0])
    else:
        to.copy(concat, inputs)
    return True


@dataclass
class _Slices:
    """Which values are slices of others along an axis."""

    graph: Graph
    axis: int
    splits: dict[Node, dict[str, tuple[int, int]]] = field(default_factory=dict)
    """The ranges of a Split's outputs, computed once for all of them."""

    def adjacent(self, values: Sequence[str], at: int) -> tuple[int, str]:
        """Return how many values from `at` on form one whole value in order, and that value; 0 if there is none."""
        first = self.part(values[at])
        if first is None or first.start:
            return 0, ""
        extent, end, many = (self.graph.type(first.whole).shape or ())[self.axis], first.end, 1
        while end != extent and at + many < len(values):
            next_one = self.part(values[at + many])
            if next_one is None or next_one.whole != first.whole or next_one.start != end:
                return 0, ""
            end, many = next_one.end, many + 1
        return (many, first.whole) if end == extent and many > 1 else (0, "")

    def part(self, value: str) -> _Slice | None:
        """Return the source and range of a value that is a slice along the axis alone; None if that is not known."""
        graph, node = self.graph, self.graph.producer(value)
        if node is None or not (node.has(Trait.SELECTS) and node.has(Trait.NAMES_AXES)):
            return None
        shape = graph.type(node.inputs[0]).shape
        if shape is None or not isinstance(extent := shape[self.axis], int):
            return None
        if node.op == ops.Split:
            if node not in self.splits:
                self.splits[node] = self._split(node, len(shape))
            bounds = self.splits[node].get(value)
            return None if bounds is None else _Slice(node.inputs[0], *bounds)
        range_ = slice_range(graph, node)
        if range_ is None or range_[0] % len(shape) != self.axis:
            return None
        first, last, _ = slice(*range_[1:]).indices(extent)
        return _Slice(node.inputs[0], first, last)

    def _split(self, node: Node, rank: int) -> dict[str, tuple[int, int]]:
        """Return the ranges of a Split's outputs, none if it is along another axis."""
        if int(str(self.graph.attributes(node)["axis"])) % rank != self.axis:
            return {}
        return dict(zip(node.outputs, split_at(self.graph, node, self.axis), strict=False))
