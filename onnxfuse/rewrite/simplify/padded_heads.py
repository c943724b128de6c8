"""Heads of an attention that no kernel takes as they are get zeros, in the weights that make and read them.

Zeros behind queries and keys add nothing to a score, and those behind values are columns of the result that zeros in
the next weights meet. So heads of 15 or 36 elements become heads of 16 or 40, and LeViT's keys, half or a quarter as
wide as its values, as wide as these: it is attention as every other, and the scores are never written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto

from onnxfuse.kernels import is_pointwise
from onnxfuse.model.attributes import set_attribute
from onnxfuse.model.graph import Graph, Node
from onnxfuse.model.types import Dim, ValueType
from onnxfuse.rewrite.simplify.constant_shapes import reshaped, retarget
from onnxfuse.rewrite.simplify.mask_facts import given_axes, unsqueezed_axes
from onnxfuse.rewrite.simplify.transposes import order_of

ALIGNED: Mapping[int, int] = {TensorProto.FLOAT: 16, TensorProto.FLOAT16: 8, TensorProto.BFLOAT16: 8}
"""Heads of the kernels of the rule attention have a multiple of so many elements, by their type."""

MOST = 128
"""Elements of a head up to which these kernels, or the library's attention, take any number of heads."""

MOST_TIMES = 4
"""Keys grow to so many times their size at most where values are wider: the product of the scores takes as much longer.

LeViT-256, 32 images, float16: four in the two attentions of 49 and 16 queries 28 us less than two (H200, 2026-11).
"""

MOST_ROUNDED = 2
"""Heads grow to so many times their size at most where they end off a boundary: all that makes and reads them does."""

RANK = 4
"""Of queries, keys and values: [batch, heads, sequence, size]."""


@dataclass(frozen=True)
class Place:
    """Where heads lie in a value."""

    axis: int
    heads: int
    """So many, one behind the other, along the axis."""


@dataclass(frozen=True)
class _Heads:
    """Values in which there are heads of one size, all that make or read each of them among the nodes around."""

    places: Mapping[str, Place]
    size: int
    width: int
    """To be made as wide as this."""

    def widened(self, value: str, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        place = self.places[value]
        return tuple(place.heads * self.width if axis == place.axis else n for axis, n in enumerate(shape))

    def padded(self, array: np.ndarray, axis: int) -> np.ndarray:
        """Return an array with zeros behind each head along an axis."""
        apart = np.moveaxis(array, axis, -1)
        apart = apart.reshape(*apart.shape[:-1], -1, self.size)
        wide = np.pad(apart, [(0, 0)] * (apart.ndim - 1) + [(0, self.width - self.size)])
        return np.moveaxis(wide.reshape(*wide.shape[:-2], -1), -1, axis)


def pad_heads(graph: Graph) -> bool:
    """Let the heads of each attention be as wide as a kernel takes them, where all come from weights and go to some.

    Return whether any are wider.
    """
    changed = False
    for softmax in [n for n in graph.nodes if n.op == "Softmax" and not n.domain]:
        for heads in _narrow(graph, softmax):
            _widen(graph, heads)
            changed = True
    return changed


# ---- looking


def _narrow(graph: Graph, softmax: Node) -> list[_Heads]:
    """Return the heads of an attention that are to be wider; none where one of them can not."""
    result, scores = _result(graph, softmax), _scores(graph, softmax)
    if result is None or scores is None:
        return []
    queries, keys, values = *scores.inputs, result.inputs[1]
    known = [graph.type(v) for v in (queries, keys, values)]
    aligned = ALIGNED.get(known[0].dtype)
    if aligned is None or any(t.rank != RANK for t in known):
        return []
    of_keys, of_values = ((t.shape or ())[-1] for t in (known[0], known[2]))
    if not isinstance(of_keys, int) or not isinstance(of_values, int):
        return []
    width = -(-max(of_keys, of_values) // aligned) * aligned
    if width > MOST or of_keys > of_values or width > MOST_TIMES * of_keys or width > MOST_ROUNDED * of_values:
        return []
    found = list[_Heads]()
    for size, starts in ((of_keys, {queries: 3, keys: 2}), (of_values, {values: 3})):
        if size < width and not any(v in heads.places for v in starts for heads in found):
            places = _reached(graph, {v: Place(axis, 1) for v, axis in starts.items()}, size, width)
            if places is None:
                return []
            found.append(_Heads(places, size, width))
    return found


def _result(graph: Graph, softmax: Node) -> Node | None:
    """Return the product of the probabilities and values. Over the last axis a Softmax is the same at every opset."""
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


def _reached(graph: Graph, starts: dict[str, Place], size: int, width: int) -> dict[str, Place] | None:
    """Return all values in which these heads are, from the products that make them to those that read them.

    None where something else makes or reads one of them.
    """
    found: dict[str, Place] = {}
    waiting = list(starts.items())
    while waiting:
        value, place = waiting.pop()
        shape, maker = graph.type(value).shape, graph.producer(value)
        if value in found:
            if found[value] != place:
                return None
            continue
        if shape is None or maker is None or graph.is_output(value) or shape[place.axis] != place.heads * size:
            return None
        found[value] = place
        for node in (maker, *graph.readers(value)):
            beside = _beside(graph, node, value, place, size)
            if beside is None:
                return None
            waiting += beside.items()
    heads = _Heads(found, size, width)
    reshapes = {n for v in found for n in (graph.producer(v), *graph.readers(v)) if n is not None and n.op == "Reshape"}
    return None if any(_target(graph, node, heads) is None for node in reshapes) else found


def _beside(graph: Graph, node: Node, value: str, place: Place, size: int) -> Mapping[str, Place] | None:
    """Return in which other values of a node the heads of one of its values are; None where it is not to be said."""
    if node.domain or node.op not in _OPERATORS or value in node.captures or node.inputs.count(value) > 1:
        return None
    return _OPERATORS[node.op](graph, node, value, place, size)


def _of_product(graph: Graph, node: Node, value: str, place: Place, size: int) -> Mapping[str, Place] | None:
    """A product by a weight makes heads, or reads them; one of two values sums over their elements, or keeps them."""
    del size
    left, right, result = *node.inputs, node.outputs[0]
    ranks = {v: graph.type(v).rank or 0 for v in (left, right, result)}
    behind = place.axis - ranks[value]  # counted from the end
    if graph.is_constant(right):
        return {} if behind == -1 and ranks[right] == 2 and value != right else None
    pairs = (((left, -1), (right, -2)), ((right, -1), (result, -1)), ((left, -2), (result, -2)))
    for one, other in (*pairs, *(pair[::-1] for pair in pairs)):
        if one == (value, behind) and ranks[other[0]] >= -other[1] and not graph.is_constant(other[0]):
            return {other[0]: replace(place, axis=ranks[other[0]] + other[1])}
    return None


def _of_elements(graph: Graph, node: Node, value: str, place: Place, size: int) -> Mapping[str, Place] | None:
    """What is added to heads, or multiplied with them, gets zeros, too; but one factor for all may stay."""
    at = _constant(graph, node)
    if at is None:
        return None
    constant, other = node.inputs[at], node.inputs[1 - at]
    dims = graph.type(constant).shape or ()
    one = graph.element_count(constant) == 1 and (node.op == "Mul" or (node.op == "Div" and at == 1))
    along = graph.element_count(constant) == place.heads * size == (dims or (0,))[-1] and node.op != "Div"
    last = place.axis == (graph.type(value).rank or 0) - 1
    if not (one or (along and last)) or graph.type(other).rank != graph.type(node.outputs[0]).rank:
        return None
    return {node.outputs[0] if value == other else other: place}


def _constant(graph: Graph, node: Node) -> int | None:
    """Return which of two inputs alone is a constant."""
    which = [i for i, v in enumerate(node.inputs) if graph.is_constant(v)]
    return which[0] if len(which) == 1 else None


def _of_axes(graph: Graph, node: Node, value: str, place: Place, size: int) -> Mapping[str, Place] | None:
    """What puts axes in, takes them out or turns them leaves the heads along theirs."""
    del size
    source, result = node.inputs[0], node.outputs[0]
    axes = _axes(graph, node)
    if axes is None or place.axis not in (axes if value == source else range(len(axes))):
        return None
    axis = axes.index(place.axis) if value == source else axes[place.axis]
    return None if axis is None else {result if value == source else source: replace(place, axis=axis)}


def _axes(graph: Graph, node: Node) -> list[int | None] | None:
    """Return which axis of the first input each one of the result is; None where that is not known."""
    rank = graph.type(node.inputs[0]).rank
    if rank is None:
        return None
    match node.op:
        case "Transpose":
            order = order_of(graph, node)
            return None if order is None else [*order]
        case "Unsqueeze":
            return unsqueezed_axes(graph, node, rank)
        case "Squeeze":
            gone = given_axes(graph, node)
            return None if gone is None else [a for a in range(rank) if a not in {g % rank for g in gone}]
        case "Gather":
            taken, at = graph.type(node.inputs[1]).rank, int(str(graph.attributes(node)["axis"])) % rank
            return None if taken is None else [*range(at), *[None] * taken, *range(at + 1, rank)]
        case _:  # Slice
            cut = graph.constant(node.inputs[3]) if len(node.inputs) > 3 else None
            return None if cut is None else [None if a in {int(c) % rank for c in cut} else a for a in range(rank)]


def _of_reshape(graph: Graph, node: Node, value: str, place: Place, size: int) -> Mapping[str, Place] | None:
    """Heads stay behind one another, with the axes before them joined or split, and those behind them as they are."""
    other = node.outputs[0] if value == node.inputs[0] else node.inputs[0]
    mine, theirs = graph.type(value).shape, graph.type(other).shape
    if mine is None or theirs is None:
        return None
    behind = mine[place.axis + 1 :]
    axis = len(theirs) - len(behind) - 1
    if axis < 0 or None in behind or theirs[axis + 1 :] != behind:
        return None
    extent = theirs[axis]
    whole = isinstance(extent, int) and extent > 0 and extent % size == 0 and _one_run(mine, place.axis, theirs, axis)
    return {other: Place(axis, extent // size)} if whole and isinstance(extent, int) else None


def _one_run(mine: tuple[Dim, ...], at: int, theirs: tuple[Dim, ...], other: int) -> bool:
    """Return whether axes up to these two, from some on, have as many elements."""
    count, counted = mine[at], theirs[other]
    while isinstance(count, int) and isinstance(counted, int) and count != counted:
        if count < counted:
            at -= 1
            count = count * step if at >= 0 and isinstance(step := mine[at], int) else None
        else:
            other -= 1
            counted = counted * step if other >= 0 and isinstance(step := theirs[other], int) else None
    return isinstance(count, int) and count == counted


def _of_split(graph: Graph, node: Node, value: str, place: Place, size: int) -> Mapping[str, Place] | None:
    """Parts along another axis have the same heads; parts along theirs have whole ones."""
    rank = graph.type(node.inputs[0]).rank
    axis = None if rank is None else int(str(graph.attributes(node)["axis"])) % rank
    if axis != place.axis:
        return {v: place for v in (node.inputs[0], *node.outputs) if v and v != value}
    found, count = dict[str, Place](), 0
    for part in node.outputs:
        extent = (graph.type(part).shape or (None,) * (axis + 1))[axis]
        if not isinstance(extent, int) or extent % size:
            return None
        found[part] = Place(axis, extent // size)
        count += extent // size
    found[node.inputs[0]] = Place(axis, count)
    return {v: p for v, p in found.items() if v != value} if found[value] == place else None


_OPERATORS: Mapping[str, Callable[[Graph, Node, str, Place, int], Mapping[str, Place] | None]] = {
    "MatMul": _of_product,
    **dict.fromkeys(("Add", "Mul", "Div"), _of_elements),
    **dict.fromkeys(("Transpose", "Squeeze", "Unsqueeze", "Gather", "Slice"), _of_axes),
    "Reshape": _of_reshape,
    "Split": _of_split,
}
"""What heads pass through."""


def _target(graph: Graph, reshape: Node, heads: _Heads) -> list[int] | None:
    """Return the constant target of a Reshape of wider heads; None where there is none."""
    shapes = [graph.type(v).shape or () for v in (reshape.inputs[0], reshape.outputs[0])]
    source, result = (heads.widened(v, s) for v, s in zip((reshape.inputs[0], reshape.outputs[0]), shapes, strict=True))
    return reshaped(source, result)


# ---- changing


def _widen(graph: Graph, heads: _Heads) -> None:
    """Put zeros behind each head."""
    around = {n for v in heads.places for n in (graph.producer(v), *graph.readers(v)) if n is not None}
    for node in sorted(around, key=lambda n: n.order):
        if node.op == "Reshape":
            target = graph.fresh(f"{node.inputs[1]}.padded")
            graph.add_constant(target, np.asarray(_target(graph, node, heads), np.int64))
            retarget(graph, node, target)
        elif node.op == "Split":
            _cut_elsewhere(graph, node, heads)
        elif node.op in ("MatMul", "Add", "Mul"):
            _pad(graph, node, heads)
    for value in heads.places:
        known = graph.type(value)
        assert known.shape is not None
        graph.retype(value, ValueType(known.dtype, heads.widened(value, known.shape)))


def _cut_elsewhere(graph: Graph, node: Node, heads: _Heads) -> None:
    """Let a Split between heads that is told sizes make parts of the new ones."""
    place = heads.places[node.inputs[0]]
    if int(str(graph.attributes(node)["axis"])) not in (
        place.axis,
        place.axis - (graph.type(node.inputs[0]).rank or 0),
    ):
        return
    sizes = [heads.places[v].heads * heads.width for v in node.outputs]
    new = onnx.NodeProto()
    new.CopyFrom(node.proto)
    if "split" in node.written:
        set_attribute(new, "split", sizes)
    elif len(node.inputs) > 1:
        new.input[1] = graph.fresh(f"{node.inputs[1]}.padded")
        graph.add_constant(new.input[1], np.asarray(sizes, np.int64))
    graph.replace([node], [Node(new)])


def _pad(graph: Graph, node: Node, heads: _Heads) -> None:
    """Give a node zeros beside those of its other operand, or its result, where it has a constant for each element."""
    at = _constant(graph, node)
    array = None if at is None else graph.constant(node.inputs[at])
    if at is None or array is None or array.size == 1:
        return
    if node.op == "MatMul":
        for value, axis in ((node.inputs[0], 0), (node.outputs[0], 1)):
            array = heads.padded(array, axis) if value in heads.places else array
    else:
        array = heads.padded(array, -1)
    new = onnx.NodeProto()
    new.CopyFrom(node.proto)
    new.input[at] = graph.fresh(f"{node.inputs[at]}.padded")
    graph.add_constant(new.input[at], array)
    graph.replace([node], [Node(new)])
