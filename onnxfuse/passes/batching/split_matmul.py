"""Split a product whose result is sliced along its columns: one product per slice, by that slice of the weight.

Exporters pack several projections of one input into one product and split its result: queries, keys and values; a gate
and its gated value; shifts and scales. The split copies every element once more. Separate products are placed where
their readers need them, and multiplying several weights by one input in one launch (the rule gemm) still applies, as
they share the input. Rules that know more about the slices (packed_qkv, packed_kv, packed_heads) run first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.cuda.costs import library
from onnxfuse.cuda.isa.factors import ALIGNED
from onnxfuse.graph.channels import order_of
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.ops import Trait
from onnxfuse.passes.views.slice_ranges import slice_range, split_at
from onnxfuse.shapes.types import Dim, ValueType, differ

SINCE = 13
"""First operator set whose Split and Squeeze read their sizes and axes as an input."""

FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT)
"""Element types that the rule gemm multiplies."""

Axes = tuple[int | None, ...]
"""For each axis of a value, the corresponding axis of the columns; None for an axis of rows."""


@dataclass(frozen=True)
class _Part:
    """The range that one slice keeps."""

    value: str
    start: int
    size: int
    gone: bool
    """Whether the slice selects one index and removes its axis (Gather)."""


@dataclass(frozen=True)
class _Step:
    """A Reshape, Transpose or Unsqueeze between the product and the slices."""

    node: Node
    before: Axes
    after: Axes


@dataclass
class _View:
    """Location of the columns within a value, and the steps that led there."""

    axes: Axes
    extents: tuple[int, ...]
    """Extents of the axes that the columns were split into."""
    steps: list[_Step] = field(default_factory=list)


@dataclass(frozen=True)
class _Slices:
    """A product, its bias if a separate node, the view of it that is sliced, and the slices with their ranges."""

    product: Node
    add: Node | None
    view: _View
    axis: int
    """Index among the columns' axes."""
    nodes: tuple[Node, ...]
    parts: tuple[_Part, ...]


@graph_pass
def split_matmul(graph: Graph) -> bool:
    """Splits a product whose columns are sliced apart into one product per slice."""
    if graph.opset < SINCE:
        return False
    splits = [split for n in graph.nodes if n.has(Trait.MATRIX_PRODUCT) and (split := _plan(graph, n)) is not None]
    for split in splits:
        _write(graph, split)
    return bool(splits)


# ---- analysis


def _plan(graph: Graph, product: Node) -> _Slices | None:
    columns, rank = _column_count(graph, product), graph.type(product.outputs[0]).rank
    if columns is None or rank is None:
        return None
    add = _bias(graph, product, columns)
    value = (add or product).outputs[0]
    view = _View((*[None] * (rank - 1), 0), (columns,))
    while not graph.is_output(value):
        readers = graph.readers(value)
        cuts = [_cutting(graph, reader, value, view) for reader in readers]
        if cuts and all(cuts):
            return _whole(graph, product, add, view, [c for c in cuts if c is not None])
        if len(readers) != 1 or not _follow(graph, readers[0], value, view):
            return None
        value = readers[0].outputs[0]
    return None


def _column_count(graph: Graph, product: Node) -> int | None:
    """Return a product's number of columns; None if its parts would not share a launch."""
    if product.domain or not all(map(graph.is_let_go, product.inputs[1:])):
        return None
    weight, axis = graph.type(product.inputs[1]), _columns_of(graph, product)
    if weight.dtype not in FLOATS or weight.rank != 2 or graph.attributes(product).get("transA"):
        return None
    size = _size(weight.shape or ())
    if not size:
        return None
    columns = int(str((weight.shape or ())[axis]))
    terms = size // columns
    biases = [graph.type(v).shape or () for v in product.inputs[2:]]
    if terms % ALIGNED or terms > library.costs().product_terms or any(b[-1:] != (columns,) for b in biases):
        return None
    return columns


def _columns_of(graph: Graph, product: Node) -> int:
    """Return the axis of the weight that holds the product's columns."""
    return 0 if product.op == ops.Gemm and graph.attributes(product)["transB"] == 1 else 1


def _size(extents: Sequence[Dim]) -> int | None:
    return prod(int(str(n)) for n in extents) if all(isinstance(n, int) for n in extents) else None


def _bias(graph: Graph, product: Node, columns: int) -> Node | None:
    """Return the Add of a per-column bias that is the product's only reader."""
    add = graph.only_reader(product.outputs[0])
    if add is None or add.op != ops.Add or add.domain:
        return None
    (bias,) = (v for v in add.inputs if v != product.outputs[0])
    return add if graph.type(bias).shape == (columns,) and graph.is_let_go(bias) else None


def _follow(graph: Graph, node: Node, value: str, view: _View) -> bool:
    """Extend the view through a Reshape, Transpose or Unsqueeze; return whether the columns can still be located."""
    if node.domain or not _reads_first(node, value):
        return False
    before = view.axes
    if node.op == ops.Transpose:
        order = order_of(graph, node)
        if order is None:
            return False
        view.axes = tuple(before[axis] for axis in order)
    elif node.op == ops.Reshape:
        extents = _split_into(graph, node, view)
        if extents is None:
            return False
        rows = len(graph.type(node.outputs[0]).shape or ()) - len(extents)
        view.extents, view.axes = extents, (*[None] * rows, *range(len(extents)))
    elif node.op == ops.Unsqueeze:
        axes, rank = graph.constant(node.inputs[1]), graph.type(node.outputs[0]).rank
        if axes is None or rank is None or len(view.extents) != 1:  # an index may remove an axis of several
            return False
        ones, rest = {int(a) % rank for a in axes.reshape(-1)}, iter(before)
        view.axes = tuple(None if axis in ones else next(rest) for axis in range(rank))
    else:
        return False
    view.steps.append(_Step(node, before, view.axes))
    return True


def _reads_first(node: Node, value: str) -> bool:
    return node.reads.count(value) == 1 and node.inputs[0] == value


def _split_into(graph: Graph, reshape: Node, view: _View) -> tuple[int, ...] | None:
    """Return the extents of a Reshape's last axes that form the columns; None if unknown.

    The target's entries before them describe the rows, independently of the columns.
    """
    after = graph.type(reshape.outputs[0]).shape
    if after is None or len(view.extents) != 1 or view.axes[-1] != 0:
        return None
    count = next((n for n in range(1, len(after) + 1) if _size(after[-n:]) == view.extents[0]), None)
    if count is None:
        return None
    target, rows, position = graph.constant(reshape.inputs[1]), len(after) - count, len(view.axes) - 1
    written = target is not None and bool(target[position : position + 1].all())
    may_copy = rows > position and not (written or reshape.written.get("allowzero"))
    if may_copy and not differ(after[position], view.extents[0]):  # a 0 there would copy the number of columns
        return None
    return tuple(int(str(n)) for n in after[rows:])


Selecting = Callable[[Graph, Node, _View], tuple[int, list[_Part]] | None]

Cutting = tuple[int, list[Node], list[_Part]]
"""The sliced axis of a value, the nodes that slice it, and the ranges that they keep."""


def _cutting(graph: Graph, node: Node, value: str, view: _View) -> Cutting | None:
    if not node.has(Trait.SELECTS) or node.domain or not _reads_first(node, value):
        return None
    selection = _selected(graph, node, view)
    if selection is None or view.axes[selection[0]] is None:
        return None
    axis, parts = selection
    nodes, pieces = [node], list[_Part]()
    for part in parts:
        dropping = _dropping(graph, part, axis)
        nodes += dropping
        pieces += [_Part(n.outputs[0], part.start, 1, gone=True) for n in dropping] or [part]
    return axis, nodes, pieces


def _dropping(graph: Graph, part: _Part, axis: int) -> list[Node]:
    """Return the Squeezes of the sliced axis that are the only readers of one-element parts."""
    readers, rank = graph.readers(part.value), graph.type(part.value).rank
    if part.size != 1 or part.gone or graph.is_output(part.value) or rank is None:
        return []
    for node in readers:
        axes = graph.constant(node.inputs[1]) if node.op == ops.Squeeze and len(node.inputs) == 2 else None
        if node.domain or axes is None or [int(a) % rank for a in axes.reshape(-1)] != [axis]:
            return []
    return readers if len(readers) == 1 else []


def _selected(graph: Graph, node: Node, view: _View) -> tuple[int, list[_Part]] | None:
    """Return the axis along which a node selects ranges, and these; None if it does not."""
    own: dict[str, Selecting] = {ops.Split: _split, ops.Slice: _slice, ops.Gather: _gather}
    return own[node.op](graph, node, view) if node.op in own else None


def _split(graph: Graph, node: Node, view: _View) -> tuple[int, list[_Part]] | None:
    axis = _axis(graph, node, view)
    ranges = split_at(graph, node, axis)
    if not all(node.outputs) or len(ranges) != len(node.outputs):
        return None
    return axis, [_Part(v, s, e - s, gone=False) for v, (s, e) in zip(node.outputs, ranges, strict=True)]


def _slice(graph: Graph, node: Node, view: _View) -> tuple[int, list[_Part]] | None:
    range_ = slice_range(graph, node)
    columns = None if range_ is None else view.axes[range_[0]]
    if range_ is None or columns is None:
        return None
    axis, start, end = range_
    first, last, _ = slice(start, end).indices(view.extents[columns])
    return axis % len(view.axes), [_Part(node.outputs[0], first, last - first, gone=False)]


def _gather(graph: Graph, node: Node, view: _View) -> tuple[int, list[_Part]] | None:
    axis, index = _axis(graph, node, view), graph.constant(node.inputs[1])
    columns = view.axes[axis]
    if columns is None or index is None or index.size != 1 or index.ndim > 1:
        return None
    start = int(index.reshape(-1)[0]) % view.extents[columns]
    return axis, [_Part(node.outputs[0], start, 1, gone=index.ndim == 0)]


def _axis(graph: Graph, node: Node, view: _View) -> int:
    return int(str(graph.attributes(node)["axis"])) % len(view.axes)


def _whole(graph: Graph, product: Node, add: Node | None, view: _View, cuts: Sequence[Cutting]) -> _Slices | None:
    """Return the slicing if it is along one axis, into several parts of sufficient width without overlap; else None."""
    axes = {axis for axis, _, _ in cuts}
    parts = sorted((p for _, _, each in cuts for p in each), key=lambda p: p.start)
    overlap = any(b.start < a.start + a.size for a, b in pairwise(parts))
    if len(axes) != 1 or len(parts) < 2 or overlap or any(p.size < 1 for p in parts):
        return None
    columns = view.axes[axes.pop()]
    assert columns is not None
    each = prod(view.extents) // view.extents[columns]
    constants = [v for node in (product, add) if node is not None for v in node.inputs if graph.is_constant(v)]
    if any(p.size * each % ALIGNED for p in parts) or any(graph.constant(v) is None for v in constants):
        return None
    return _Slices(product, add, view, columns, tuple(n for _, nodes, _ in cuts for n in nodes), tuple(parts))


# ---- rewriting


def _write(graph: Graph, split: _Slices) -> None:
    steps = [step.node for step in split.view.steps]
    to = Rewriter(graph, split.product, *([split.add] if split.add else []), *steps, *split.nodes)
    for part in split.parts:
        _compute(split, part, to)
    to.finish()


def _compute(plan: _Slices, part: _Part, to: Rewriter) -> None:
    """Compute a part as a separate product."""
    graph = to.graph
    extents_of = {a: part.size if a == plan.axis else n for a, n in enumerate(plan.view.extents)}
    columns = prod(extents_of.values())
    if part.gone:
        del extents_of[plan.axis]
    products = [plan.product, *([plan.add] if plan.add else [])]
    chain = [*products, *(step.node for step in plan.view.steps)]
    names = {node.outputs[0]: to.value(f"{part.value}.{node.op.lower()}") for node in chain[:-1]}
    names[chain[-1].outputs[0]] = part.value

    def copy(node: Node, reads: Sequence[str], shape: Sequence[Dim], **changes: Any) -> None:
        output = names[node.outputs[0]]
        type_ = ValueType(graph.type(node.outputs[0]).dtype, tuple(shape))
        to.copy(node, reads, output=output, name=output, type_=type_, **changes)

    for node in products:
        reads = [names.get(v, v) for v in node.inputs]
        for position, value in enumerate(node.inputs):
            if graph.is_constant(value):
                axis = _columns_of(graph, node) if (node, position) == (plan.product, 1) else -1
                reads[position] = _columns(plan, part, value, axis, to)
        copy(node, reads, [*(graph.type(node.outputs[0]).shape or ())[:-1], columns])
    for step in plan.view.steps:
        split = sum(a is not None for a in step.after) > 1
        extents = extents_of if split else {0: columns}
        shape = graph.type(step.node.outputs[0]).shape or (None,) * len(step.after)
        lasting = [
            n if a is None else extents[a] for n, a in zip(shape, step.after, strict=True) if a in (None, *extents)
        ]
        reads = [names.get(v, v) for v in step.node.inputs]
        if step.node.op == ops.Transpose:
            remaining = [axis for axis, a in enumerate(step.before) if a in (None, *extents)]
            order = order_of(graph, step.node) or []
            copy(step.node, reads, lasting, perm=[remaining.index(axis) for axis in order if axis in remaining])
        elif step.node.op == ops.Unsqueeze:
            copy(step.node, reads, lasting)
        else:
            rows = sum(a is None for a in step.after)
            target = _target(step.node.inputs[1], rows, list(extents.values()), names[step.node.outputs[0]], to)
            copy(step.node, [reads[0], target], lasting)


def _columns(plan: _Slices, part: _Part, value: str, axis: int, to: Rewriter) -> str:
    """Return a new constant: the part's slice, along the column axis, of one of the product's constants."""
    whole = to.graph.constant(value)
    assert whole is not None
    axis %= whole.ndim
    split = whole.reshape(*whole.shape[:axis], *plan.view.extents, *whole.shape[axis + 1 :])
    part_of = np.take(split, range(part.start, part.start + part.size), axis + plan.axis)
    return to.constant(f"{part.value}.{value}", part_of.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 1 :]))


def _target(whole: str, rows: int, columns: Sequence[int], result: str, to: Rewriter) -> str:
    """Return the target of a Reshape to `result`: with other last axes than `whole`, the target of all parts."""
    constant = to.graph.constant(whole)
    if constant is not None:
        return to.constant(f"{result}.target", [*map(int, constant[:rows]), *columns])
    leading = to.add(ops.Slice, whole, starts=[0], ends=[rows], hint=f"{result}.rows")
    last = to.constant(f"{result}.columns", columns)
    return to.add(ops.Concat, leading, last, axis=0, hint=f"{result}.target")
