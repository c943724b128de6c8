"""Undo the merging of batch axes around matrix products: run the products over the original axes.

`torch.bmm` and `baddbmm` take one batch axis, so [batch, heads, s, d] is reshaped to [batch * heads, s, d] before them
and back after them. MatMul takes any number of batch axes; with separate axes, scores meet masks of [batch, 1, s, s]
and per-head biases in the same form as in every other attention.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from onnxfuse import ops
from onnxfuse.graph.channels import order_of
from onnxfuse.graph.constant_folding import is_reshape
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.ops import Trait
from onnxfuse.shapes.extents import reshape_target
from onnxfuse.shapes.types import Dim, ValueType

SINCE = 13
"""First operator set whose Softmax has one axis, and whose Unsqueeze reads its axes as an input."""

MATRICES = 3
"""Rank of a batch of matrices. One axis more, [batch, heads, s, d], is the form of every attention; windows merged with
the batch while heads have their own axis stay merged.
"""


@dataclass(frozen=True)
class _Merge:
    parts: tuple[Dim, ...]
    """Extents of the two merged axes, the leading ones of their values."""
    whole: Dim
    """Extent of the merged axis."""

    def split_dims(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return (*self.parts, *shape[1:])


@graph_pass
def unmerge_batches(graph: Graph) -> bool:
    """Runs products and Transposes over the batch axes that a Reshape merged."""
    if graph.opset < SINCE:
        return False
    changed = False
    for merge in dict.fromkeys(_merges(graph)):
        values = _worth_it(graph, merge, _between(graph, merge))
        if values:
            _unmerge(graph, merge, values)
            changed = True
    return changed


def _merges(graph: Graph) -> Iterator[_Merge]:
    for node in graph.nodes:
        if is_reshape(node):
            before, after = graph.type(node.inputs[0]).shape, graph.type(node.outputs[0]).shape
            if before is None or after is None or (len(before), len(after)) != (MATRICES + 1, MATRICES):
                continue
            parts = before[:2]
            several = None not in parts and parts[1] != 1  # an axis of 1 may have been merged with the next one
            if several and before[2:] == after[1:] and after[0] not in (None, 1):
                yield _Merge(parts, after[0])


def _between(graph: Graph, merge: _Merge) -> set[str]:
    """Return the values whose merged axis can be split: their producers and readers allow it."""
    shapes = {v: graph.type(v).shape or () for n in graph.nodes for v in n.outputs[:1] if not graph.is_output(v)}
    values = {v for v, shape in shapes.items() if 1 < len(shape) <= MATRICES and shape[0] == merge.whole}
    order = [n for n in graph.nodes if n.outputs and n.outputs[0] in values]
    before = len(values) + 1
    while len(values) < before:
        before = len(values)
        order.reverse()
        for node in order:
            value = node.outputs[0]
            if value in values and not (
                _can_unmerge(graph, merge, node, values)
                and all(_reads_split(graph, merge, r, value, values) for r in graph.readers(value))
            ):
                values.remove(value)
    return values


def _can_unmerge(graph: Graph, merge: _Merge, node: Node, values: Set[str]) -> bool:
    if is_reshape(node):
        return _splits(graph, merge, node, values)
    return _operands(graph, merge, node, values) is not None


def _reads_split(graph: Graph, merge: _Merge, node: Node, value: str, values: Set[str]) -> bool:
    if node.op == ops.Shape and not node.domain:
        return not node.written
    if not is_reshape(node):
        return len(node.outputs) == 1 and node.outputs[0] in values
    return value == node.inputs[0] and value not in node.inputs[1:] and _splits(graph, merge, node, values)


def _splits(graph: Graph, merge: _Merge, reshape: Node, values: Set[str]) -> bool:
    """Return whether a Reshape stays valid if its input, its output, or both are unmerged."""
    before, after = (_shape(graph, merge, v, values) for v in (reshape.inputs[0], reshape.outputs[0]))
    return _form(before, after) is not None


def _shape(graph: Graph, merge: _Merge, value: str, values: Set[str]) -> tuple[Dim, ...] | None:
    """Return a value's shape after unmerging."""
    shape = graph.type(value).shape
    return shape if shape is None or value not in values else merge.split_dims(shape)


def _operands(graph: Graph, merge: _Merge, node: Node, values: Set[str]) -> list[bool | None] | None:
    """Return for each input whether it is unmerged (True), needs leading unit axes (False) or stays unchanged (None).

    Return None if the node does not preserve its first axis.
    """
    rank = graph.type(node.outputs[0]).rank
    if rank is None or len(node.outputs) != 1 or node.captures or not _keeps_first_axis(graph, node, rank):
        return None
    operands: list[bool | None] = []
    for value in node.inputs:
        shape = graph.type(value).shape if value else ()
        if shape is None:
            return None
        if len(shape) == rank and shape[0] == merge.whole and value in values:
            operands.append(True)
        elif len(shape) == rank and shape[0] == 1 and value not in values:
            operands.append(False)
        elif len(shape) < rank and value not in values and (node.op != ops.MatMul or len(shape) == 2):
            operands.append(None)
        else:
            return None
    return operands if True in operands else None


def _keeps_first_axis(graph: Graph, node: Node, rank: int) -> bool:
    if node.domain or node.is_elementwise:
        return node.is_elementwise
    if node.op == ops.MatMul:
        return rank >= MATRICES
    if node.op == ops.Transpose:
        order = order_of(graph, node)
        return order is not None and order[0] == 0
    return node.has(Trait.SOFTMAX) and _axis(graph, node, rank) != -rank


def _worth_it(graph: Graph, merge: _Merge, values: Set[str]) -> set[str]:
    """Return the values connected to an axis that was never merged and to a product of two of them.

    Values that are only transposed between the Reshapes count as well: torch's exporter transposes an attention's keys
    so.
    """
    result = set[str]()
    waiting = set(values)
    while waiting:
        together, pending = set[str](), [next(iter(waiting))]
        while pending:
            value = pending.pop()
            if value in waiting:
                waiting.remove(value)
                together.add(value)
                around = [*graph.readers(value), *filter(None, [graph.producer(value)])]
                pending += [v for n in around for v in (*n.inputs, *n.outputs) if v in values]
        makers = [n for v in together if (n := graph.producer(v)) is not None]
        product = any(n.op == ops.MatMul and together.issuperset(n.inputs) for n in makers)
        transposed = any(n.op == ops.Transpose for n in makers) and all(n.has(Trait.KEEPS_ELEMENTS) for n in makers)
        never = any(is_reshape(n) and n.inputs[0] not in values and _is_split(graph, merge, n) for n in makers)
        result |= together if never and (product or transposed) else set()
    return result


def _is_split(graph: Graph, merge: _Merge, node: Node) -> bool:
    shape = graph.type(node.outputs[0]).shape
    return shape is not None and graph.type(node.inputs[0]).shape == merge.split_dims(shape)


def _unmerge(graph: Graph, merge: _Merge, values: Set[str]) -> None:
    names: dict[str, str] = {}
    for node in [n for n in graph.nodes if not values.isdisjoint((*n.inputs, *n.outputs))]:
        value, type_ = node.outputs[0], graph.type(node.outputs[0])
        if value in values:
            if is_reshape(node) and node.inputs[0] not in values and _is_split(graph, merge, node):
                names[value] = node.inputs[0]
                graph.replace([node], [])
                continue
            names[value] = graph.fresh(f"{value}.apart")
            assert type_.shape is not None
            graph.types[names[value]] = ValueType(type_.dtype, merge.split_dims(type_.shape))
        source, result = (names.get(v, v) for v in (node.inputs[0], value))
        to = Rewriter(graph, node)
        if is_reshape(node):
            form = _form(graph.type(source).shape, graph.type(result).shape)
            assert form is not None
            op, operands = form
            to.add(op, source, output=result, name=node.proto.name, **operands)
        elif value in values:
            _compute(merge, node, names, values, to)
        else:
            _shape_of_merged(merge, node, source, to)
        to.finish()


def _compute(merge: _Merge, node: Node, names: Mapping[str, str], values: Set[str], to: Rewriter) -> None:
    operands, changes = _operands(to.graph, merge, node, values), dict[str, Any]()
    assert operands is not None
    reads = {
        position: names[value] if unmerged else _unsqueezed(value, to)
        for position, (value, unmerged) in enumerate(zip(node.inputs, operands, strict=True))
        if unmerged is not None
    }
    if node.op == ops.Transpose:
        changes = {"perm": [0, *(axis + 1 for axis in order_of(to.graph, node) or ())]}
    elif node.has(Trait.SOFTMAX):
        changes = {"axis": _axis(to.graph, node, len(to.graph.type(node.outputs[0]).shape or ()))}
    to.copy(node, reads, output=names[node.outputs[0]], **changes)


def _unsqueezed(value: str, to: Rewriter) -> str:
    """Return `value` with one more leading axis of extent 1."""
    old_type = to.graph.type(value)
    type_ = ValueType(old_type.dtype, (1, *(old_type.shape or ())))
    return to.add(ops.Unsqueeze, value, axes=[0], hint=f"{value}.apart", type_=type_)


def _form(before: tuple[Dim, ...] | None, after: tuple[Dim, ...] | None) -> tuple[str, dict[str, Any]] | None:
    """Return the operator, and its constant operand, that converts one shape to the other; None if there is none."""
    if before is None or after is None:
        return None
    ones = _added(before, after)
    if ones is not None:
        return (ops.Unsqueeze, {"axes": ones}) if ones else (ops.Identity, {})
    target = reshape_target(before, after)
    return None if target is None else (ops.Reshape, {"shape": target})


def _added(before: Sequence[Dim], after: Sequence[Dim]) -> list[int] | None:
    """Return the unit axes that `after` has in addition; None if the shapes differ otherwise."""
    rest, ones = list(before), list[int]()
    for axis, extent in enumerate(after):
        if rest and rest[0] == extent:
            del rest[0]
        elif extent == 1:
            ones.append(axis)
        else:
            return None
    return None if rest else ones


def _shape_of_merged(merge: _Merge, node: Node, source: str, to: Rewriter) -> None:
    """Compute the shape of merged `source`: the product of the leading extents, then the others."""
    shape, count = to.add(ops.Shape, source, hint=f"{node.outputs[0]}.apart"), len(merge.parts)
    parts = to.add(ops.Slice, shape, starts=[0], ends=[count], hint=f"{node.outputs[0]}.parts")
    rest = to.add(ops.Slice, shape, starts=[count], ends=[2**31 - 1], hint=f"{node.outputs[0]}.rest")
    whole = to.add(ops.ReduceProd, parts, hint=f"{node.outputs[0]}.whole")  # keepdims defaults to 1
    to.add(ops.Concat, whole, rest, axis=0, output=node.outputs)


def _axis(graph: Graph, node: Node, rank: int) -> int:
    """Return the axis that a node operates on, counted from the end."""
    axis = int(str(graph.attributes(node)["axis"]))
    return axis if axis < 0 else axis - rank
