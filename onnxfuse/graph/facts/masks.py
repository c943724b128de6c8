"""Prove that a mask is causal: whether it separates keys after their query from the others.

Proven from constant values, or from the comparison of positions that computes the mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.meanings import computed
from onnxfuse.ops import Trait, named
from onnxfuse.shapes.types import Dim

LOW = -5.9e4
"""An addend of at most this value removes a float16 score: exp(LOW + score - maximum) is 0 for scores up to 5e3.

-6e4 is -59904 in bfloat16.
"""

DEPTH = 40
"""Maximum nodes between a mask and its positions; exporters write a dozen."""


@dataclass(frozen=True)
class _Position:
    """Each element is its own index along one axis, counted from the end: -1 for keys, -2 for queries."""

    axis: int
    rank: int


@dataclass(frozen=True)
class Seen:
    """A condition or an addend that depends only on whether a key comes after its query."""

    before: float
    """Its value where key <= query; conditions are 1 and 0."""
    after: float


_Known = _Position | Seen | float | None
"""A number stands for a tensor filled with it."""


def diagonal(graph: Graph, mask: str) -> Seen | None:
    """Return the values of `mask` on both sides of the diagonal; None unless it provably depends on nothing else."""
    found = _Search(graph).known(mask)
    return found if isinstance(found, Seen) else None


def everywhere(graph: Graph, value: str) -> float | None:
    """Return the number that `value` is known to be filled with; conditions are 1 and 0."""
    found = _Search(graph).known(value)
    if isinstance(found, Seen):
        return found.before if found.before == found.after else None
    return found if isinstance(found, float) else None


def covers(graph: Graph, mask: str, scores: str) -> bool:
    """Return whether `mask` is known to have a separate element for each query and key of `scores`."""
    extents = graph.type(scores).shape or ()
    return len(extents) > 1 and all(_spans(graph, mask, axis, extents[axis]) for axis in (-2, -1))


def _spans(graph: Graph, mask: str, axis: int, extent: Dim) -> bool:
    """Return whether an operand of what computes a mask has this extent at an axis, and all after it keep it."""
    values, seen = [mask], {mask}
    for _ in range(DEPTH + 1):
        before = list[str]()
        for value in values:
            shape = graph.type(value).shape
            if extent is None or shape is None or len(shape) < -axis:
                continue
            if shape[axis] == extent:
                return True
            node = graph.producer(value)
            if node is None or node.domain:
                continue
            if node.op == ops.Slice:
                if (sliced := _sliced_axis(graph, node)) == axis and _takes(graph, node, axis, extent):
                    return True
                before += node.inputs[:1] if sliced not in (None, axis) else ()
            elif node.is_elementwise:
                before += node.inputs
        values = [v for v in dict.fromkeys(before) if v not in seen]
        seen.update(values)
    return False


def _sliced_axis(graph: Graph, node: Node) -> int | None:
    """Return the axis of a Slice along one axis, counted from the end."""
    axes = graph.constant(node.inputs[3]) if len(node.inputs) > 3 else None
    table = graph.type(node.inputs[0]).shape
    return None if axes is None or axes.size != 1 or table is None else int(axes.item()) % len(table) - len(table)


def _takes(graph: Graph, node: Node, axis: int, extent: Dim) -> bool:
    """Return whether a Slice takes so many elements of a longer table along an axis."""
    # A table that is too short does not match the scores at all; only a single row would be broadcast.
    table = (graph.type(node.inputs[0]).shape or ())[axis]
    return isinstance(table, int) and table != 1 and extent_of(graph, node.inputs[2]) == extent


@dataclass(frozen=True)
class _Search:
    """What is known of the values that one mask is computed from."""

    graph: Graph
    found: dict[tuple[str, int], _Known] = field(default_factory=dict)
    """By value and the number of nodes that may lie before it: a node's operands often have the same origin."""

    def known(self, value: str, depth: int = DEPTH) -> _Known:
        """Return what a value is, looking at so many nodes before it, one behind the other."""
        if (value, depth) not in self.found:
            self.found[value, depth] = self._known(value, depth)
        return self.found[value, depth]

    def _known(self, value: str, depth: int) -> _Known:
        graph = self.graph
        if graph.is_constant(value):
            return _of_constant(graph.constant(value))
        node = graph.producer(value)
        if node is None or node.domain or depth == 0:
            return None
        if node.op == ops.Cast:
            return _cast(graph, node, self.known(node.inputs[0], depth - 1))
        if node.has(Trait.EXPANDS):
            inner = self.known(node.inputs[0], depth - 1)
            return inner if isinstance(inner, float) or node.op != ops.Expand or _keeps_square(graph, node) else None
        if node.op in (ops.Unsqueeze, ops.Range):
            return self._position(node, depth)
        if node.op == ops.ConstantOfShape:
            filled = graph.attributes(node).get("value")
            return _of_constant(numpy_helper.to_array(filled) if isinstance(filled, TensorProto) else np.zeros(1))
        if node.op == ops.Trilu:
            return self._triangle(node, depth)
        if node.op == ops.Slice:
            inner = self.known(node.inputs[0], depth - 1)
            keeps = isinstance(inner, float) or (isinstance(inner, Seen) and _from_the_corner(graph, node))
            return inner if keeps else None
        return self._elementwise(node, depth) if node.is_elementwise else None

    def _elementwise(self, node: Node, depth: int) -> _Known:
        given: list[_Known] = []
        for operand in node.inputs:
            given.append(self.known(operand, depth - 1))
            if given[-1] is None:  # one operand may suffice: the others may depend on the whole model
                return None
        return _computed(self.graph, node, given)

    def _triangle(self, node: Node, depth: int) -> _Known:
        """Trilu of a constant fill: the lower triangle includes the diagonal, the upper one with k = 1 excludes it."""
        inside = self.known(node.inputs[0], depth - 1)
        shift = self.graph.constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else np.zeros(())
        upper = int(bool(self.graph.attributes(node).get("upper", 1)))
        if not isinstance(inside, float) or shift is None or int(shift.reshape(-1)[0]) != upper:
            return None
        return Seen(0, inside) if upper else Seen(inside, 0)

    def _position(self, node: Node, depth: int) -> _Known:
        if node.op == ops.Range:
            start, _, step = (self.graph.constant(v) for v in node.inputs)
            counts = start is not None and step is not None and not start.any() and (step == 1).all()
            return _Position(-1, 1) if counts else None
        inner = self.known(node.inputs[0], depth - 1)
        if not isinstance(inner, _Position):
            return inner if isinstance(inner, float) else None
        axes = unsqueezed_axes(self.graph, node, inner.rank)
        return None if axes is None else _Position(axes.index(inner.axis % inner.rank) - len(axes), len(axes))


def _cast(graph: Graph, node: Node, inner: _Known) -> _Known:
    """Return what a Cast gives: numbers as they are in its type, and positions in an integer type that holds them."""
    types = [graph.type(v).dtype for v in (node.inputs[0], node.outputs[0])]
    if isinstance(inner, _Position):
        return inner if all(t in (TensorProto.INT64, TensorProto.INT32) for t in types) else None
    if inner is None or not all(types):
        return None
    to = helper.tensor_dtype_to_np_dtype(types[1])
    numbers = (inner.before, inner.after) if isinstance(inner, Seen) else (inner,)
    if to.kind in "iu" and not all(np.iinfo(to).min <= n <= np.iinfo(to).max for n in numbers):
        return None  # what it gives depends on the device
    return _computed(graph, node, [inner])


def _keeps_square(graph: Graph, node: Node) -> bool:
    """An Expand along queries or keys would broadcast one position: the results would not be positions."""
    before, after = (graph.type(v).shape for v in (node.inputs[0], node.outputs[0]))
    if before is None or after is None:
        return False
    ends = zip(reversed(before[-2:]), reversed(after[-2:]), strict=False)
    return all(a == b for a, b in ends)


def _from_the_corner(graph: Graph, node: Node) -> bool:
    """A Slice that starts at the first query and the first key preserves the diagonal."""
    steps = graph.constant(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] else np.ones(1)
    return len(node.inputs) > 2 and steps is not None and bool((steps == 1).all()) and _is_zero(graph, node.inputs[1])


def _is_zero(graph: Graph, value: str) -> bool:
    """Return whether an index is 0: a constant, or the difference of two equal extents, as of keys and queries."""
    constant, node = graph.constant(value), graph.producer(value)
    if constant is not None:
        return not constant.any()
    if node is None or node.domain:
        return False
    if node.op == ops.Sub:
        first, second = (extent_of(graph, v) for v in node.inputs)
        return first is not None and first == second
    return node.op in _SAME and _is_zero(graph, node.inputs[0])


def extent_of(graph: Graph, value: str) -> Dim:
    """Return the extent that a scalar reads from a shape."""
    node = graph.producer(value)
    while node is not None and node.op in _SAME and not node.domain:
        node = graph.producer(node.inputs[0])
    source = graph.producer(node.inputs[0]) if node is not None and node.op == ops.Gather and not node.domain else None
    index = graph.constant(node.inputs[1]) if node is not None and source is not None else None
    if source is None or source.op != ops.Shape or source.proto.attribute or index is None or index.size != 1:
        return None
    shape = graph.type(source.inputs[0]).shape or ()
    place = int(index.reshape(-1)[0])
    return shape[place] if -len(shape) <= place < len(shape) else None


def constant_axes(graph: Graph, node: Node) -> list[int] | None:
    """Return the axes of a Squeeze or an Unsqueeze, None if unknown."""
    axes = graph.attributes(node).get("axes") or (graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None)
    return None if axes is None else [int(a) for a in np.asarray(axes).reshape(-1)]


def unsqueezed_axes(graph: Graph, node: Node, rank: int) -> list[int | None] | None:
    """Return the operand's axis for each axis of an Unsqueeze's result, None for an inserted one.

    Return None if the axes are unknown.
    """
    axes = constant_axes(graph, node)
    if axes is None:
        return None
    whole, old = rank + len(axes), iter(range(rank))
    new = {a % whole for a in axes}
    return [None if axis in new else next(old) for axis in range(whole)]


_SAME = named(Trait.KEEPS_ELEMENTS, Trait.CASTS)
"""Operators between an extent and its use that preserve its value."""


def _of_constant(array: np.ndarray | None) -> _Known:
    if array is None or array.size == 0:
        return None
    numbers = array.astype(np.float64)
    if (numbers == numbers.reshape(-1)[0]).all():
        return float(numbers.reshape(-1)[0])
    long = [axis for axis, extent in enumerate(array.shape) if extent != 1]
    if len(long) == 1 and (numbers.reshape(-1) == np.arange(array.size)).all():
        return _Position(long[0] - array.ndim, array.ndim)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        return None
    lower = np.tril(np.ones(array.shape[-2:], bool))
    before, after = numbers[..., lower], numbers[..., ~lower]
    uniform = (before == before.flat[0]).all() and (after == after.flat[0]).all()
    return Seen(float(before.flat[0]), float(after.flat[0])) if uniform else None


def _computed(graph: Graph, node: Node, given: list[_Known]) -> _Known:
    op, entry = node.op, node.entry
    assert entry is not None
    if isinstance(given[0], _Position) and len(given) == 2 and isinstance(given[1], _Position):
        return _compared(op, given[0].axis, given[1].axis)
    for position, other in enumerate(given[1::-1]):
        if given[position] == entry.neutral_at(position):
            return other
    if len(given) == 2 and isinstance(given[0], _Position) and isinstance(given[1], float):
        return _counted(op, given[1])
    if len(given) == 2 and isinstance(given[1], _Position) and isinstance(given[0], float):
        return _counted(_mirrored(op), given[0])
    befores = _number(graph, node, [g.before if isinstance(g, Seen) else g for g in given])
    afters = _number(graph, node, [g.after if isinstance(g, Seen) else g for g in given])
    if befores is None or afters is None or all(isinstance(g, float) for g in given):
        return befores
    return Seen(befores, afters)


def _number(graph: Graph, node: Node, operands: Sequence[_Known]) -> float | None:
    """Return what an elementwise node computes of numbers; None for other operands, or if it has no meaning."""
    entry, arrays = node.entry, list[np.ndarray]()
    for value, number in zip(node.inputs, operands, strict=True):
        if not isinstance(number, int | float):
            return None
        kind = helper.tensor_dtype_to_np_dtype(graph.type(value).dtype or TensorProto.FLOAT).kind
        if kind in "iu" and not (number == number // 1 and abs(number) < 2**63):
            return None  # infinite, or rounded to a double
        arrays.append(np.asarray(number, {"b": np.bool_, "i": np.int64, "u": np.int64}.get(kind, np.float64)))
    try:
        assert entry is not None
        (found,) = computed(entry, graph.opset, arrays, graph.attributes(node))
    except ValueError:  # Dropout in training mode
        return None
    return float(found)


def _counted(op: str, number: float) -> float | None:
    """Return the constant result of comparing positions with a number, if any: positions start at 0."""
    if (op == ops.GreaterOrEqual and number <= 0) or (op == ops.Greater and number < 0):
        return 1.0
    return 0.0 if (op == ops.Less and number <= 0) or (op == ops.LessOrEqual and number < 0) else None


def _mirrored(op: str) -> str:
    """Return the comparison with operands exchanged; empty for other operators."""
    entry = ops.operator(op)
    return entry.mirrored if entry is not None else ""


def _compared(op: str, first: int, second: int) -> Seen | None:
    """Return the result of comparing positions along two axes; None where the diagonal is on the wrong side."""
    if (first, second) == (-2, -1):
        op, first, second = _mirrored(op), second, first
    if (first, second) != (-1, -2):
        return None
    return Seen(1, 0) if op == ops.LessOrEqual else Seen(0, 1) if op == ops.Greater else None


def is_finite(graph: Graph, value: str, depth: int = 20) -> bool:
    """Return whether every element of `value` is known to be finite: it never masks a whole row."""
    waiting, seen = [(value, depth)], {value}
    while waiting:
        one, left = waiting.pop()
        if graph.is_constant(one):
            array = graph.constant(one)
            if array is None or not np.isfinite(array.astype(np.float64)).all():
                return False
            continue
        node = graph.producer(one)
        entry = ops.operator(node.op, node.domain) if node is not None and left else None
        if node is None or entry is None:
            return False
        if Trait.CASTS in entry.traits and graph.type(node.inputs[0]).dtype == TensorProto.BOOL:
            continue
        carried = [v for i, v in enumerate(node.inputs) if entry.carries(i)]
        if not carried:
            return False
        waiting += [(v, left - 1) for v in carried if v not in seen]
        seen.update(carried)
    return True
