"""Attention whose values are wider than its keys: queries and keys get zeros, and it is attention as every other.

LeViT has values of twice the size of a key, and of four times where it takes fewer queries. Columns of zeros in the
weights of queries and keys add nothing to a score; the products then have one shape and one launch, and the scores are
never written.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from onnxfuse.kernels import is_pointwise
from onnxfuse.model.graph import Graph, Node
from onnxfuse.model.types import ValueType
from onnxfuse.rewrite.simplify.transposes import order_of

SINCE = 13
"""The first opset whose Softmax has one axis."""

ALIGNED = 16
"""Heads of the kernels of the rule attention have a multiple of so many elements."""

MOST = 128
"""Elements of a head up to which these kernels, or the library's attention, take any number of heads."""

MOST_TIMES = 4
"""A key grows to so many times its size at most: the product of the scores takes as much longer.

LeViT-256, 32 images, float16: four in the two attentions of 49 and 16 queries 28 us less than two (H200, 2026-11).
"""

RANK = 4
"""Of queries, keys and values: [batch, heads, sequence, size]."""


@dataclass(frozen=True)
class _Projection:
    """Nodes from a product by a weight to heads of queries or keys."""

    product: Node
    add: Node | None
    to_heads: Node
    """The Reshape."""
    on: tuple[Node, ...]
    """What follows: the Transpose, and numbers that scale."""
    heads: int


def pad_queries(graph: Graph) -> bool:
    """Let queries and keys be as wide as wider values, where both come from weights; return whether any are."""
    if graph.opset < SINCE:
        return False
    changed = False
    for node in [n for n in graph.nodes if n.op == "Softmax" and not n.domain]:
        projections = _narrow(graph, node)
        if projections is not None:
            for projection in projections[0]:
                _widen(graph, projection, projections[1])
            changed = True
    return changed


# ---- looking


def _narrow(graph: Graph, softmax: Node) -> tuple[tuple[_Projection, _Projection], int] | None:
    """Return the projections of queries and keys and the wider size of the values; None where it is not so."""
    result, scores = _result(graph, softmax), _scores(graph, softmax)
    if result is None or scores is None:
        return None
    shapes = [graph.type(v).shape or () for v in (result.inputs[1], *scores.inputs)]
    if any(len(shape) != RANK for shape in shapes):
        return None
    values, size = shapes[0][-1], shapes[1][-1]
    if not isinstance(values, int) or not isinstance(size, int) or values % ALIGNED or values > MOST:
        return None
    if not size < values <= MOST_TIMES * size:
        return None
    queries, keys = (_projection(graph, v, axis, size) for v, axis in zip(scores.inputs, (3, 2), strict=True))
    return None if queries is None or keys is None else ((queries, keys), values)


def _result(graph: Graph, softmax: Node) -> Node | None:
    """Return the product of the probabilities and values."""
    axis = int(str(graph.attributes(softmax)["axis"]))
    node = graph.only_reader(softmax.outputs[0])
    product = node is not None and _is_product(node) and node.inputs[0] == softmax.outputs[0]
    return node if product and axis in (-1, RANK - 1) else None


def _scores(graph: Graph, softmax: Node) -> Node | None:
    """Return the product that the softmax is of, behind a scale and what is added."""
    node = graph.producer(softmax.inputs[0])
    while node is not None and is_pointwise(node.op, node.domain) and len(node.outputs) == 1:
        before = [n for v in node.inputs if (n := graph.producer(v)) is not None and not graph.is_constant(v)]
        node = before[0] if len(before) == 1 else None
    return node if node is not None and _is_product(node) else None


def _is_product(node: Node) -> bool:
    return node.op == "MatMul" and not node.domain


def _projection(graph: Graph, value: str, axis: int, size: int) -> _Projection | None:
    """Return what makes heads whose elements lie along an axis; None where that is no product by a weight."""
    on = list[Node]()
    for node in _before(graph, value):
        order = order_of(graph, node) if node.op == "Transpose" else None
        if order is not None:
            axis = order[axis]
        elif node.op == "Reshape":
            shape = graph.type(node.outputs[0]).shape or ()
            heads = shape[2] if len(shape) == RANK and axis == RANK - 1 and shape[-1] == size else None
            return _of_weights(graph, node, tuple(on), heads, size) if isinstance(heads, int) else None
        elif not _scales(graph, node):
            return None
        on.append(node)
    return None


def _before(graph: Graph, value: str) -> Iterator[Node]:
    """Yield what makes a value of one other and a constant for its one reader, what makes that other one, and so on."""
    while graph.only_reader(value) is not None and (node := graph.producer(value)) is not None:
        moving = [v for v in node.inputs if not graph.is_constant(v)]
        if node.domain or len(moving) != 1 or node.captures:
            return
        yield node
        (value,) = moving


def _scales(graph: Graph, node: Node) -> bool:
    """Return whether a node multiplies all by one number, so that zeros stay zeros."""
    position = {"Mul": _constant(graph, node), "Div": 1}.get(node.op) if len(node.inputs) == 2 else None
    return position is not None and graph.element_count(node.inputs[position]) == 1


def _constant(graph: Graph, node: Node) -> int:
    """Return which of two inputs is a constant."""
    return int(graph.is_constant(node.inputs[1]))


def _of_weights(graph: Graph, to_heads: Node, on: tuple[Node, ...], heads: int, size: int) -> _Projection | None:
    before = [n for n, _ in zip(_before(graph, to_heads.inputs[0]), range(2), strict=False)]
    add = before[0] if before and before[0].op == "Add" else None
    products = before[1 if add else 0 :][:1]
    if not products or not _is_product(products[0]) or _constant(graph, products[0]) != 1:
        return None
    constants = [graph.constant(n.inputs[_constant(graph, n)]) for n in (*products, *([add] if add else []), to_heads)]
    shapes = [c.shape for c in constants if c is not None]
    wanted = [(graph.type(products[0].inputs[0]).shape or (None,))[-1], heads * size]
    fits = len(shapes) == len(constants) and list(shapes[0]) == wanted and all(s == shapes[0][1:] for s in shapes[1:-1])
    return _Projection(products[0], add, to_heads, on, heads) if fits else None


# ---- changing


def _widen(graph: Graph, projection: _Projection, size: int) -> None:
    """Put zeros behind each head."""
    heads = projection.heads
    for node in (projection.product, projection.add):
        if node is not None:
            weight = _read(graph, node)
            apart = weight.reshape(*weight.shape[:-1], heads, -1)
            zeros = np.zeros((*apart.shape[:-1], size - apart.shape[-1]), weight.dtype)
            _write(graph, node, np.concatenate([apart, zeros], -1).reshape(*weight.shape[:-1], heads * size))
            _retype(graph, node.outputs[0], -1, heads * size)
    *ahead, last = _read(graph, projection.to_heads)
    _write(graph, projection.to_heads, np.asarray([*ahead, -1 if last == -1 else size], np.int64))
    axis = RANK - 1
    _retype(graph, projection.to_heads.outputs[0], axis, size)
    for node in reversed(projection.on):
        if node.op == "Transpose":
            axis = (order_of(graph, node) or []).index(axis)
        _retype(graph, node.outputs[0], axis, size)


def _read(graph: Graph, node: Node) -> np.ndarray:
    array = graph.constant(node.inputs[_constant(graph, node)])
    assert array is not None
    return array


def _write(graph: Graph, node: Node, array: np.ndarray) -> None:
    """Give a node another constant in the place of its own."""
    new = onnx.NodeProto()
    new.CopyFrom(node.proto)
    position = _constant(graph, node)
    new.input[position] = graph.fresh(f"{node.inputs[position]}.padded")
    graph.add_constant(new.input[position], array)
    graph.replace([node], [Node(new)])


def _retype(graph: Graph, value: str, axis: int, extent: int) -> None:
    known = graph.type(value)
    if known.shape is not None:
        shape = list(known.shape)
        shape[axis] = extent
        graph.types[value] = ValueType(known.dtype, tuple(shape))
