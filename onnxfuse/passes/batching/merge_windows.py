"""Merge several batch axes of an attention into one, the form that rules match.

Windows and grids of images have an axis of their own, [batch, windows, heads, s, d]. Between the Reshapes to heads and
back, batch and windows are merely two batch axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from onnxfuse import ops
from onnxfuse.cuda import is_pointwise
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.attributes import set_attribute
from onnxfuse.passes.shapes.constant_reshape_targets import is_reshape, reshaped
from onnxfuse.passes.views.transposes import order_of
from onnxfuse.shapes.types import Dim, ValueType

SINCE = 13
"""First operator set whose Softmax has one axis, and whose Squeeze reads its axes as an input."""

ATTENDED = 3
"""Number of axes after the batch: [heads, s, d]."""


@dataclass
class _Region:
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


def merge_windows(graph: Graph) -> bool:
    """Merge the batch axes of each attention that has several; return whether any were merged."""
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


def _around(graph: Graph, softmax: Node) -> _Region | None:
    """Return the region around a Softmax; None if a node in it operates on the batch axes, or it has no products."""
    shape = graph.type(softmax.outputs[0]).shape
    if shape is None or len(shape) <= ATTENDED + 1 or None in shape[:-ATTENDED]:
        return None
    region = _Region(tuple(shape[:-ATTENDED]))
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
            beside = _beside(graph, node, region)
            if beside is None:
                return None
            region.nodes[node] = None
            waiting += beside
    products = [n for n in region.nodes if n.op == ops.MatMul and region.values.issuperset(n.inputs)]
    return region if products and all(_target(graph, n, region) for n in region.nodes if is_reshape(n)) else None


def _beside(graph: Graph, node: Node, region: _Region) -> list[str] | None:
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
    if node.domain or is_pointwise(node.op, node.domain):
        return is_pointwise(node.op, node.domain)
    if node.op == ops.Transpose:
        order = order_of(graph, node)
        return order is not None and order[:count] == list(range(count))
    if node.op == ops.Softmax:
        axis = int(str(graph.attributes(node)["axis"]))
        return axis >= count or -ATTENDED <= axis < 0
    return node.op == ops.MatMul


def _target(graph: Graph, reshape: Node, region: _Region) -> list[int] | None:
    """Return the target of a boundary Reshape with a merged batch axis; None if it is not expressible."""
    before, after = (
        region.merged(shape) if v in region.values and shape is not None else shape
        for v in (reshape.inputs[0], reshape.outputs[0])
        for shape in (graph.type(v).shape,)
    )
    return None if before is None or after is None else reshaped(before, after)


# ---- rewriting


def _merge(graph: Graph, region: _Region) -> None:
    names = {}
    for value in sorted(region.values):
        known = graph.type(value)
        assert known.shape is not None
        names[value] = graph.fresh(f"{value}.merged")
        graph.types[names[value]] = ValueType(known.dtype, region.merged(known.shape))
    for node in sorted(region.nodes, key=lambda n: n.order):
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        before: list[Node] = []
        if is_reshape(node):
            proto.input[1] = graph.fresh(f"{node.outputs[0]}.target")
            graph.add_constant(proto.input[1], np.asarray(_target(graph, node, region), np.int64))
            set_attribute(proto, "allowzero", None)
        elif node.op == ops.Transpose:
            fewer = len(region.batch) - 1
            set_attribute(proto, "perm", [0, *(axis - fewer for axis in (order_of(graph, node) or [])[fewer + 1 :])])
        elif node.op == ops.Softmax:
            axis = int(str(graph.attributes(node)["axis"]))
            set_attribute(proto, "axis", axis if axis < 0 else axis - len(region.batch) - ATTENDED)
        for position, value in enumerate(proto.input):
            if value in names:
                proto.input[position] = names[value]
            elif not is_reshape(node) and value:
                proto.input[position] = _narrowed(graph, value, before)
        proto.output[0] = names.get(node.outputs[0], node.outputs[0])
        graph.replace([node], [*before, Node(proto)])


def _narrowed(graph: Graph, value: str, before: list[Node]) -> str:
    """Return `value`, which is broadcast over the batch, without its surplus leading unit axes."""
    known = graph.type(value)
    assert known.shape is not None
    many = len(known.shape) - ATTENDED - 1
    if many <= 0:
        return value
    axes, name = graph.fresh(f"{value}.axes"), graph.fresh(f"{value}.merged")
    graph.add_constant(axes, np.arange(many, dtype=np.int64))
    graph.types[name] = ValueType(known.dtype, known.shape[many:])
    before.append(Node(onnx.helper.make_node(ops.Squeeze, [value, axes], [name], name)))
    return name
