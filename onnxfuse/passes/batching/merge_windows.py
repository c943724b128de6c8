"""Merge several batch axes of an attention into one, the form that rules match.

Windows and grids of images have an axis of their own, [batch, windows, heads, s, d]. Between the Reshapes to heads and
back, batch and windows are merely two batch axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from onnxfuse.cuda import is_pointwise
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.attributes import set_attribute
from onnxfuse.passes.shapes.constant_reshape_targets import is_reshape, reshaped
from onnxfuse.passes.views.transposes import order_of
from onnxfuse.shapes.types import Dim, ValueType

SINCE = 13
"""The first opset whose Softmax has one axis, and whose Squeeze has its axes as an input."""

ATTENDED = 3
"""Axes behind the batch: [heads, s, d]."""


@dataclass
class _Region:
    """What is computed between Reshapes, along the last axes alone."""

    batch: tuple[Dim, ...]
    """The extents of the first axes."""
    values: set[str] = field(default_factory=set)
    """Those that have them."""
    nodes: dict[Node, None] = field(default_factory=dict)
    """All that write or read them."""

    def has(self, shape: Sequence[Dim] | None) -> bool:
        """Return whether a value of this shape has the first axes."""
        return shape is not None and len(shape) == len(self.batch) + ATTENDED and tuple(shape[:-ATTENDED]) == self.batch

    def merged(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return the shape with one axis in the place of the first ones."""
        sizes = [n for n in self.batch if isinstance(n, int)]
        return (int(np.prod(sizes)) if len(sizes) == len(self.batch) else None, *shape[-ATTENDED:])


def merge_windows(graph: Graph) -> bool:
    """Make the batch axes of each attention that has several one axis; return whether there was any."""
    if graph.opset < SINCE:
        return False
    changed = False
    for node in [n for n in graph.nodes if n.op == "Softmax" and not n.domain]:
        region = _around(graph, node) if node.order >= 0 else None
        if region is not None:
            _merge(graph, region)
            changed = True
    return changed


# ---- looking


def _around(graph: Graph, softmax: Node) -> _Region | None:
    """Return the region of a Softmax; None where not all of it leaves the batch alone, or nothing is multiplied."""
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
    products = [n for n in region.nodes if n.op == "MatMul" and region.values.issuperset(n.inputs)]
    return region if products and all(_target(graph, n, region) for n in region.nodes if is_reshape(n)) else None


def _beside(graph: Graph, node: Node, region: _Region) -> list[str] | None:
    """Return the values of a node that have the batch, too; None where it does not leave the batch alone.

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
    """Return whether a node does the same for each place of the first `count` axes."""
    if node.domain or is_pointwise(node.op, node.domain):
        return is_pointwise(node.op, node.domain)
    if node.op == "Transpose":
        order = order_of(graph, node)
        return order is not None and order[:count] == list(range(count))
    if node.op == "Softmax":
        axis = int(str(graph.attributes(node)["axis"]))
        return axis >= count or -ATTENDED <= axis < 0
    return node.op == "MatMul"


def _target(graph: Graph, reshape: Node, region: _Region) -> list[int] | None:
    """Return the target of a Reshape with the batch as one axis of what it reads or makes; None where there is none."""
    before, after = (
        region.merged(shape) if v in region.values and shape is not None else shape
        for v in (reshape.inputs[0], reshape.outputs[0])
        for shape in (graph.type(v).shape,)
    )
    return None if before is None or after is None else reshaped(before, after)


# ---- changing


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
        elif node.op == "Transpose":
            fewer = len(region.batch) - 1
            set_attribute(proto, "perm", [0, *(axis - fewer for axis in (order_of(graph, node) or [])[fewer + 1 :])])
        elif node.op == "Softmax":
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
    """Return `value`, the same for all of the batch, without axes of 1 of which there are too many."""
    known = graph.type(value)
    assert known.shape is not None
    many = len(known.shape) - ATTENDED - 1
    if many <= 0:
        return value
    axes, name = graph.fresh(f"{value}.axes"), graph.fresh(f"{value}.merged")
    graph.add_constant(axes, np.arange(many, dtype=np.int64))
    graph.types[name] = ValueType(known.dtype, known.shape[many:])
    before.append(Node(onnx.helper.make_node("Squeeze", [value, axes], [name], name)))
    return name
