"""Merge several batch axes of an attention into one, the form that rules match.

Windows and grids of images have an axis of their own, [batch, windows, heads, s, d]. Between the Reshapes to heads and
back, batch and windows are merely two batch axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxfuse import ops
from onnxfuse.graph.channels import order_of
from onnxfuse.graph.constant_folding import is_reshape
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.shapes.extents import reshape_target
from onnxfuse.shapes.types import Dim, ValueType

SINCE = 13
"""First operator set whose Softmax has one axis, and whose Squeeze reads its axes as an input."""

ATTENDED = 3
"""Number of axes after the batch: [heads, s, d]."""


@dataclass
class _Windows:
    """Nodes between Reshapes that operate on the last axes only."""

    batch: tuple[Dim, ...]
    """Extents of the batch axes."""
    values: set[str] = field(default_factory=set)
    """Values that have the batch axes."""
    nodes: dict[Node, None] = field(default_factory=dict)
    """All nodes that write or read them."""

    def has(self, shape: Sequence[Dim] | None) -> bool:
        """Return whether a value of this shape has the batch axes."""
        return shape is not None and len(shape) == len(self.batch) + ATTENDED and tuple(shape[:-ATTENDED]) == self.batch

    def merged(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return the shape with the batch axes merged into one."""
        sizes = [n for n in self.batch if isinstance(n, int)]
        return (int(np.prod(sizes)) if len(sizes) == len(self.batch) else None, *shape[-ATTENDED:])


@graph_pass
def merge_windows(graph: Graph) -> bool:
    """Merges several batch axes of an attention, as of windows, into one."""
    if graph.opset < SINCE:
        return False
    changed = False
    for node in [n for n in graph.nodes if n.op == ops.Softmax and not n.domain]:
        region = _around(graph, node) if node.order >= 0 else None
        if region is not None:
            _merge(graph, region)
            changed = True
    return changed


# ---- analysis


def _around(graph: Graph, softmax: Node) -> _Windows | None:
    """Return the region around a Softmax; None if a node in it operates on the batch axes, or it has no products."""
    shape = graph.type(softmax.outputs[0]).shape
    if shape is None or len(shape) <= ATTENDED + 1 or None in shape[:-ATTENDED]:
        return None
    region = _Windows(tuple(shape[:-ATTENDED]))
    waiting = [softmax.outputs[0]]
    while waiting:
        value = waiting.pop()
        maker = graph.producer(value)
        if value in region.values:
            continue
        if maker is None or graph.is_output(value):
            return None
        region.values.add(value)
        for node in (maker, *graph.readers(value)):
            if node in region.nodes:
                continue
            others = _others(graph, node, region)
            if others is None:
                return None
            region.nodes[node] = None
            waiting += others
    products = [n for n in region.nodes if n.op == ops.MatMul and region.values.issuperset(n.inputs)]
    return region if products and all(_target(graph, n, region) for n in region.nodes if is_reshape(n)) else None


def _others(graph: Graph, node: Node, region: _Windows) -> list[str] | None:
    """Return the node's other values with the batch axes; None if it operates on those axes.

    A Reshape ends the region.
    """
    if is_reshape(node):
        return None if node.inputs[1] in region.values else []
    if len(node.outputs) != 1 or node.captures or not region.has(graph.type(node.outputs[0]).shape):
        return None
    if not _leaves_alone(graph, node, len(region.batch)):
        return None
    others = []
    for value in filter(None, node.inputs):
        shape = graph.type(value).shape
        if region.has(shape) and not graph.is_constant(value):
            others.append(value)
        elif shape is None or any(n != 1 for n in shape[:-ATTENDED]):
            return None
    return [*others, node.outputs[0]]


def _leaves_alone(graph: Graph, node: Node, count: int) -> bool:
    """Return whether a node is independent across the first `count` axes."""
    if node.domain or node.is_elementwise:
        return node.is_elementwise
    if node.op == ops.Transpose:
        order = order_of(graph, node)
        return order is not None and order[:count] == list(range(count))
    if node.op == ops.Softmax:
        axis = int(str(graph.attributes(node)["axis"]))
        return axis >= count or -ATTENDED <= axis < 0
    return node.op == ops.MatMul


def _target(graph: Graph, reshape: Node, region: _Windows) -> list[int] | None:
    """Return the target of a boundary Reshape with a merged batch axis; None if it is not expressible."""
    before, after = (
        region.merged(shape) if v in region.values and shape is not None else shape
        for v in (reshape.inputs[0], reshape.outputs[0])
        for shape in (graph.type(v).shape,)
    )
    return None if before is None or after is None else reshape_target(before, after)


# ---- rewriting


def _merge(graph: Graph, region: _Windows) -> None:
    names = {}
    for value in sorted(region.values):
        type_ = graph.type(value)
        assert type_.shape is not None
        names[value] = graph.fresh(f"{value}.merged")
        graph.types[names[value]] = ValueType(type_.dtype, region.merged(type_.shape))
    for node in sorted(region.nodes, key=lambda n: n.order):
        to, changes = Rewriter(graph, node), dict[str, Any]()
        reads = [names.get(v) or (v if is_reshape(node) or not v else _narrowed(v, to)) for v in node.inputs]
        if is_reshape(node):
            changes = {"shape": _target(graph, node, region), "allowzero": None}
        elif node.op == ops.Transpose:
            fewer = len(region.batch) - 1
            changes = {"perm": [0, *(axis - fewer for axis in (order_of(graph, node) or [])[fewer + 1 :])]}
        elif node.op == ops.Softmax:
            axis = int(str(graph.attributes(node)["axis"]))
            changes = {"axis": axis if axis < 0 else axis - len(region.batch) - ATTENDED}
        to.copy(node, reads, output=names.get(node.outputs[0], node.outputs[0]), **changes)
        to.finish()


def _narrowed(value: str, to: Rewriter) -> str:
    """Return `value`, which is broadcast over the batch, without its surplus leading unit axes."""
    old_type = to.graph.type(value)
    assert old_type.shape is not None
    many = len(old_type.shape) - ATTENDED - 1
    if many <= 0:
        return value
    type_ = ValueType(old_type.dtype, old_type.shape[many:])
    return to.add(ops.Squeeze, value, axes=list(range(many)), hint=f"{value}.merged", type_=type_)
