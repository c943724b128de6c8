"""Replace a mask that is equal for all queries by one broadcast row.

Exporters expand a padding mask to one row per query: by combining the condition on keys with one that always holds, or
by an Expand. Masks that are added to scores, or select among them, broadcast to the scores' shape anyway.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from onnx import NodeProto, TensorProto

from onnxfuse import ops
from onnxfuse.graph.facts.masks import everywhere
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, copied
from onnxfuse.ops import Trait
from onnxfuse.ops.inputs import TruthValues
from onnxfuse.shapes.extents import broadcast
from onnxfuse.shapes.types import ValueType

DEPTH = 20
"""Maximum nodes to follow from a mask to its sources; exporters write a handful."""


@graph_pass
def shrink_masks(graph: Graph) -> bool:
    """Replaces a mask that is equal for all queries by one row.

    `Add(s, Where(And(always, keep), 0, low))` -> `Add(s, Where(keep, 0, low))`: `keep` is a row, `always` a column.
    """
    slim, changed = _Slim(graph), False
    for node in list(graph.nodes):
        for position in _masks(graph, node):
            value = node.inputs[position]
            small = slim.of(value, DEPTH)
            others = [v for i, v in enumerate(node.inputs) if v and i != position]
            if small == value or not _keeps_shape(graph, small, value, others):
                slim.discard()
                continue
            to = Rewriter(graph, node)
            for new in slim.take(small):
                to.append(new)
            to.copy(node, {position: small})
            to.finish()
            changed = True
            break
    return changed


def _masks(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return the inputs of an elementwise node that may mask scores: a condition that selects, addends, or a factor
    that is a condition as 1 and 0.

    ONNX's own Attention is not among them: ONNX Runtime's kernels for it require a row for each query.
    """
    entry = node.entry
    if entry is None or Trait.BROADCASTS not in entry.traits:
        return ()
    if node.op == ops.Mul:
        return tuple(i for i, v in enumerate(node.inputs) if _is_condition(graph, v))
    return (0, 1) if node.op == ops.Add else entry.positions(TruthValues) if Trait.CARRIES in entry.traits else ()


def _is_condition(graph: Graph, value: str) -> bool:
    """Return whether a value is a truth value that was cast to a number."""
    node = graph.producer(value)
    return node is not None and node.has(Trait.CASTS) and graph.type(node.inputs[0]).dtype == TensorProto.BOOL


def _keeps_shape(graph: Graph, small: str, value: str, others: Sequence[str]) -> bool:
    """Return whether each axis and extent that `small` lacks is provided by another operand.

    # Add([4, 8], s) -> Add([8], s) loses the 4; Add([1, 8], s) -> Add([8], s) loses the axis
    """
    new, old = graph.type(small).shape, graph.type(value).shape
    if not new or not old:
        return False
    shapes = [s for v in others if (s := graph.type(v).shape) is not None]

    def has(axis: int) -> bool:
        """Return whether another operand has this axis of `old`, counted from the end, with the same extent."""
        long = [s for s in shapes if len(s) >= -axis]
        return any(s[axis] == old[axis] for s in long) if old[axis] != 1 else bool(long)

    lost = [axis for axis in range(-len(old), 0) if len(new) < -axis or new[axis] != old[axis]]
    return all(old[axis] is not None and has(axis) for axis in lost)


@dataclass
class _Slim:
    """Values of one graph, each with a smaller value that broadcasts to the same."""

    graph: Graph
    smaller: dict[str, str] = field(default_factory=dict)
    """Memoized results: a value in the graph, or that no smaller one is known."""
    waiting: dict[str, tuple[str, NodeProto]] = field(default_factory=dict)
    """Nodes not yet inserted into the graph, by their output, with the value that it replaces."""
    pending: dict[str, str] = field(default_factory=dict)
    """Their outputs, by the values that they replace."""

    def of(self, value: str, depth: int) -> str:
        """Return the smallest known value that broadcasts to `value`; by default itself."""
        if value in self.pending:
            return self.pending[value]
        if value not in self.smaller:
            smallest = self._search(value, depth)
            if smallest in self.waiting:
                self.pending[value] = smallest
                return smallest
            self.smaller[value] = smallest
        return self.smaller[value]

    def _search(self, value: str, depth: int) -> str:
        node = self.graph.producer(value)
        if node is None or node.domain or depth == 0 or len(node.outputs) > 1:
            return value
        if node.op == ops.Expand:
            return self.of(node.inputs[0], depth - 1)
        entry = node.entry
        if entry is None or not node.is_elementwise or not all(node.inputs):
            return value
        for position, other in enumerate(node.inputs[1::-1]):
            neutral = entry.neutral_at(position)
            if neutral is not None and everywhere(self.graph, node.inputs[position]) == neutral:
                return self.of(other, depth - 1)
        inputs = [self.of(v, depth - 1) for v in node.inputs]
        shape = broadcast([self.graph.type(v).shape for v in inputs])
        if inputs == list(node.inputs) or shape is None or None in shape or shape == self.graph.type(value).shape:
            return value
        name = self.graph.fresh(f"{value}.row")
        self.graph.types[name] = ValueType(self.graph.type(value).dtype, shape)
        # ".row", with the number that makes it unique
        row = node.proto.name + name.removeprefix(value) if node.proto.name else ""
        self.waiting[name] = value, copied(node, inputs, [name], name=row)
        return name

    def discard(self) -> None:
        """Forget the pending nodes."""
        self.waiting.clear()
        self.pending.clear()

    def take(self, name: str) -> list[NodeProto]:
        """Return the pending nodes that `name` depends on, in order, and mark them as inserted."""
        nodes: dict[str, NodeProto] = {}

        def visit(name: str) -> None:
            if name in self.waiting and name not in nodes:
                value, node = self.waiting[name]
                for read in node.input:
                    visit(read)
                nodes[name] = node
                self.smaller[value] = name

        visit(name)
        self.discard()
        return list(nodes.values())
