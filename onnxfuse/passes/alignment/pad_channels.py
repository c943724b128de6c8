"""Zero-pad axes of values, in the weights that produce and consume them; the model's outputs stay the same.

An axis may hold several consecutive groups of elements, as attention heads do: each group is padded at its own end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from onnxfuse import ops
from onnxfuse.graph.channels import order_of
from onnxfuse.graph.constant_folding import retarget
from onnxfuse.graph.facts.masks import constant_axes, unsqueezed_axes
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.rewriter import Rewriter, substitute
from onnxfuse.ops import Trait
from onnxfuse.shapes.extents import reshape_target
from onnxfuse.shapes.types import Dim, ValueType


@dataclass(frozen=True)
class RunLayout:
    """Layout of runs (consecutive groups of elements) within a value."""

    axis: int
    runs: int
    """Number of consecutive runs along the axis."""


@dataclass(frozen=True)
class Runs:
    """Connected values that hold runs of one size, closed under all nodes that produce or read them."""

    layouts: Mapping[str, RunLayout]
    size: int
    width: int
    """Padded size of each run."""

    def padded_dims(self, value: str, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return the shape of a value with padded runs."""
        layout = self.layouts[value]
        return tuple(layout.runs * self.width if axis == layout.axis else n for axis, n in enumerate(shape))

    def padded(self, array: np.ndarray, axis: int) -> np.ndarray:
        """Return an array with zeros appended to each run along an axis."""
        split = np.moveaxis(array, axis, -1)
        split = split.reshape(*split.shape[:-1], -1, self.size)
        wide = np.pad(split, [(0, 0)] * (split.ndim - 1) + [(0, self.width - self.size)])
        return np.moveaxis(wide.reshape(*wide.shape[:-2], -1), -1, axis)


Beside = Callable[[Graph, Node, str, RunLayout, int], Mapping[str, RunLayout] | None]
"""Return the layouts of a node's other values, from the layout of one of them; None if they cannot be determined."""


# ---- analysis


def carried(graph: Graph, node: Node, value: str, layout: RunLayout, size: int) -> Mapping[str, RunLayout] | None:
    """Return the layouts of a node's other values; None unless it propagates runs, and maps zeros to zeros."""
    if node.has(Trait.ARITHMETIC):
        return of_elements(graph, node, value, layout, size)
    if node.has(Trait.BATCHED_PRODUCT):
        return _of_product(graph, node, value, layout, size)
    own: Mapping[str, Beside] = {ops.Reshape: _of_reshape, ops.Split: _of_split}
    return own.get(node.op, _of_axes)(graph, node, value, layout, size)


def reached(
    graph: Graph, starts: Mapping[str, RunLayout], size: int, width: int, through: Beside = carried
) -> Runs | None:
    """Return all values that hold these runs, from the products that produce them to those that read them.

    Return None if any node produces or reads one of them that does not propagate the runs.
    """
    layouts: dict[str, RunLayout] = {}
    waiting = list(starts.items())
    while waiting:
        value, layout = waiting.pop()
        shape, maker = graph.type(value).shape, graph.producer(value)
        if value in layouts:
            if layouts[value] != layout:
                return None
            continue
        if shape is None or maker is None or graph.is_output(value) or shape[layout.axis] != layout.runs * size:
            return None
        layouts[value] = layout
        for node in (maker, *graph.readers(value)):
            if node.domain or value in node.captures or node.inputs.count(value) > 1:
                return None
            others = through(graph, node, value, layout, size)
            if others is None:
                return None
            waiting += others.items()
    runs = Runs(layouts, size, width)
    reshapes = [n for n in _around(graph, runs) if n.op == ops.Reshape]
    return None if any(_target(graph, node, runs) is None for node in reshapes) else runs


def _around(graph: Graph, runs: Runs) -> list[Node]:
    """Return all nodes that produce or read values with such runs, in order."""
    nodes = {n for v in runs.layouts for n in (graph.producer(v), *graph.readers(v)) if n is not None}
    return sorted(nodes, key=lambda n: n.order)


def _of_product(graph: Graph, node: Node, value: str, layout: RunLayout, size: int) -> Mapping[str, RunLayout] | None:
    """A product by a weight produces or reads runs; a product of two values contracts or preserves their axis."""
    del size
    if any(node.inputs[2:]):
        return None
    left, right, result = *node.inputs[:2], node.outputs[0]
    ranks = {v: graph.type(v).rank or 0 for v in (left, right, result)}
    behind = layout.axis - ranks[value]  # counted from the end
    if graph.is_constant(right):
        there = graph.constant(right) is not None  # and its data are loaded, not external
        return {} if there and behind == -1 and ranks[right] == 2 and value != right else None
    pairs = (((left, -1), (right, -2)), ((right, -1), (result, -1)), ((left, -2), (result, -2)))
    for one, other in (*pairs, *(pair[::-1] for pair in pairs)):
        if one == (value, behind) and ranks[other[0]] >= -other[1] and not graph.is_constant(other[0]):
            return {other[0]: replace(layout, axis=ranks[other[0]] + other[1])}
    return None


def of_elements(graph: Graph, node: Node, value: str, layout: RunLayout, size: int) -> Mapping[str, RunLayout] | None:
    """Pad per-element operands of elementwise nodes as well; scalar operands stay."""
    at = one_constant(graph, node)
    if at is None:
        return None
    constant, other = node.inputs[at], node.inputs[1 - at]
    dims = graph.type(constant).shape or ()
    one = graph.element_count(constant) == 1 and (node.op == ops.Mul or (node.op == ops.Div and at == 1))
    along = graph.element_count(constant) == layout.runs * size == (dims or (0,))[-1] and node.op != ops.Div
    along = along and graph.constant(constant) is not None
    last = layout.axis == (graph.type(value).rank or 0) - 1
    if not (one or (along and last)) or graph.type(other).rank != graph.type(node.outputs[0]).rank:
        return None
    return {node.outputs[0] if value == other else other: layout}


def one_constant(graph: Graph, node: Node) -> int | None:
    """Return the index of the only constant among two inputs."""
    which = [i for i, v in enumerate(node.inputs) if graph.is_constant(v)]
    return which[0] if len(which) == 1 else None


def _of_axes(graph: Graph, node: Node, value: str, layout: RunLayout, size: int) -> Mapping[str, RunLayout] | None:
    """Operators that permute, add, remove or select axes carry the runs along with theirs."""
    del size
    source, result = node.inputs[0], node.outputs[0]
    axes = _axes(graph, node)
    if axes is None or layout.axis not in (axes if value == source else range(len(axes))):
        return None
    axis = axes.index(layout.axis) if value == source else axes[layout.axis]
    return None if axis is None else {result if value == source else source: replace(layout, axis=axis)}


def _axes(graph: Graph, node: Node) -> list[int | None] | None:
    """Return, for each axis of the result, the corresponding axis of the first input; None if unknown."""
    rank = graph.type(node.inputs[0]).rank
    if rank is None:
        return None
    match node.op:
        case ops.Transpose:
            order = order_of(graph, node)
            return None if order is None else [*order]
        case ops.Unsqueeze:
            return unsqueezed_axes(graph, node, rank)
        case ops.Squeeze:
            gone = constant_axes(graph, node)
            return None if gone is None else [a for a in range(rank) if a not in {g % rank for g in gone}]
        case ops.Gather:
            indices, at = graph.type(node.inputs[1]).rank, int(str(graph.attributes(node)["axis"])) % rank
            return None if indices is None else [*range(at), *[None] * indices, *range(at + 1, rank)]
        case ops.Slice:
            drop = graph.constant(node.inputs[3]) if len(node.inputs) > 3 else None
            return None if drop is None else [None if a in {int(c) % rank for c in drop} else a for a in range(rank)]
        case _:
            return None


def _of_reshape(graph: Graph, node: Node, value: str, layout: RunLayout, size: int) -> Mapping[str, RunLayout] | None:
    """Runs stay contiguous if a Reshape merges or splits only axes before theirs and keeps those after it."""
    other = node.outputs[0] if value == node.inputs[0] else node.inputs[0]
    mine, theirs = graph.type(value).shape, graph.type(other).shape
    if mine is None or theirs is None:
        return None
    behind = mine[layout.axis + 1 :]
    axis = len(theirs) - len(behind) - 1
    if axis < 0 or None in behind or theirs[axis + 1 :] != behind:
        return None
    extent = theirs[axis]
    whole = isinstance(extent, int) and extent > 0 and extent % size == 0 and _alike(mine, layout.axis, theirs, axis)
    return {other: RunLayout(axis, extent // size)} if whole and isinstance(extent, int) else None


def _alike(mine: tuple[Dim, ...], at: int, theirs: tuple[Dim, ...], other: int) -> bool:
    """Return whether the axes up to these two, from some axis on, have equal numbers of elements."""
    count, counted = mine[at], theirs[other]
    while isinstance(count, int) and isinstance(counted, int) and count != counted:
        if count < counted:
            at -= 1
            count = count * step if at >= 0 and isinstance(step := mine[at], int) else None
        else:
            other -= 1
            counted = counted * step if other >= 0 and isinstance(step := theirs[other], int) else None
    return isinstance(count, int) and count == counted


def _of_split(graph: Graph, node: Node, value: str, layout: RunLayout, size: int) -> Mapping[str, RunLayout] | None:
    """Splits along another axis keep the runs; splits along the runs' axis must contain whole runs."""
    rank = graph.type(node.inputs[0]).rank
    axis = None if rank is None else int(str(graph.attributes(node)["axis"])) % rank
    if axis != layout.axis:
        return {v: layout for v in (node.inputs[0], *node.outputs) if v and v != value}
    layouts, count = dict[str, RunLayout](), 0
    for part in node.outputs:
        extent = (graph.type(part).shape or (None,) * (axis + 1))[axis]
        if not isinstance(extent, int) or extent % size:
            return None
        layouts[part] = RunLayout(axis, extent // size)
        count += extent // size
    layouts[node.inputs[0]] = RunLayout(axis, count)
    return {v: p for v, p in layouts.items() if v != value} if layouts[value] == layout else None


def _target(graph: Graph, reshape: Node, runs: Runs) -> list[int] | None:
    """Return the constant target of a Reshape of padded runs; None if it is not expressible."""
    shapes = [graph.type(v).shape or () for v in (reshape.inputs[0], reshape.outputs[0])]
    source, result = (
        runs.padded_dims(v, s) for v, s in zip((reshape.inputs[0], reshape.outputs[0]), shapes, strict=True)
    )
    return reshape_target(source, result)


# ---- rewriting


def pad_runs(graph: Graph, runs: Runs) -> None:
    """Append zeros to each run."""
    for node in _around(graph, runs):
        if node.op == ops.Reshape:
            target = _target(graph, node, runs)
            assert target is not None, node
            retarget(graph, node, target)
        elif node.op == ops.Split:
            _resize_splits(graph, node, runs)
        elif node.has(Trait.BATCHED_PRODUCT) or node.has(Trait.ARITHMETIC):
            _pad(graph, node, runs)
    for value in runs.layouts:
        type_ = graph.type(value)
        assert type_.shape is not None
        graph.retype(value, ValueType(type_.dtype, runs.padded_dims(value, type_.shape)))


def _resize_splits(graph: Graph, node: Node, runs: Runs) -> None:
    """Update the explicit sizes of a Split between runs to the padded sizes."""
    axis, rank = int(str(graph.attributes(node)["axis"])), graph.type(node.inputs[0]).rank
    if rank is None or axis % rank != runs.layouts[node.inputs[0]].axis:
        return
    sizes = [runs.layouts[v].runs * runs.width for v in node.outputs]
    if "split" in node.written or len(node.inputs) > 1:
        substitute(graph, node, split=sizes)


def _pad(graph: Graph, node: Node, runs: Runs) -> None:
    """Pad a node's constants that have one value per element with zeros, to match its padded operands or result."""
    at = (
        1 if node.has(Trait.BATCHED_PRODUCT) else one_constant(graph, node)
    )  # the weight's other factor may be a weight, too
    array = None if at is None else graph.constant(node.inputs[at])
    if at is None or array is None or array.size == 1:
        return
    if node.has(Trait.BATCHED_PRODUCT):
        for value, axis in ((node.inputs[0], 0), (node.outputs[0], 1)):
            array = runs.padded(array, axis) if value in runs.layouts else array
    else:
        array = runs.padded(array, -1)
    to = Rewriter(graph, node)
    to.copy(node, {at: to.constant(f"{node.inputs[at]}.padded", array)})
    to.finish()
