"""Constant folding and common subexpressions: compute what depends on weights only once, at optimize time.

Extents are read from the first value that has them: exporters take the Shape of nearly every intermediate value, which
would force those values to memory instead of inside a kernel.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.files.io import tensor_bytes
from onnxfuse.graph.channels import is_nhwc_to_nchw
from onnxfuse.graph.evaluate import REFUSALS, evaluate, is_foldable
from onnxfuse.graph.float8 import is_float8_matrix
from onnxfuse.graph.graph import Graph, Node, bodies
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, substitute
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.host_values import SHAPE_READERS
from onnxfuse.model.schema import AttributeValue, is_random
from onnxfuse.ops import Trait, named
from onnxfuse.shapes.size_bounds import result_elements
from onnxfuse.shapes.types import Dim, ValueType
from onnxfuse.symbolic.integer import Int

SMALL = 65536
"""Bytes. A folded constant up to this size is stored regardless of its inputs."""

TABLED, SPREAD = 1 << 20, 64
"""Maximum bytes of a constant expanded from a smaller one, and maximum expansion factor. A position bias is gathered
from a table by constant indices, or by products with zeros and ones (timm's MaxViT): 49 tokens of a window 15 times,
197 of an image 53 times. It is read in every run, and computed in every run, too, unless it is a constant.
"""

FILLED = 1 << 28
"""Bytes. Weights produced by ConstantOfShape are materialized if a model's weights take no more than this."""

WEIGHED = named(Trait.CONTRACTION)
"""Operators whose weights rules inspect."""

FEW = 64
"""Elements. Constants up to this size are equal if their values are: axes, targets of Reshape, scalars."""

Home = tuple[str, int]
"""A value and an axis: the first location of an extent."""


@graph_pass
def identity_elimination(graph: Graph) -> bool:
    """Removes Identity: what reads one reads its operand, or the operand is computed under its name."""
    changed = False
    removed: dict[str, str] = {}
    for node in [n for n in graph.nodes if n.op == ops.Identity and not n.domain]:
        # A node that reads a removed identity is replaced: its replacement is visited in the next iteration.
        if node.order < 0 or not removed.keys().isdisjoint(node.reads):
            continue
        value, source = node.outputs[0], node.inputs[0]
        producer = graph.producer(source)
        if graph.is_reroutable(value):
            removed[value] = source
        elif producer is not None and not graph.is_output(source) and graph.readers(source) == [node]:
            to = Rewriter(graph, producer, node)
            to.copy(producer, output=[value if o == source else o for o in producer.outputs])
            to.finish()
        else:
            continue
        changed = True
    graph.reroute_all(removed)
    for value in removed:
        graph.replace([graph.producers[value]], [])
    return changed


@graph_pass
def constant_folding(graph: Graph) -> bool:
    """Computes what depends on constants alone, unless the file would grow much."""
    changed = common_subexpressions(graph, lambda n: n.op == ops.Transpose and graph.is_constant(n.inputs[0]))
    for node in list(graph.nodes):
        if node.order < 0 or not _can_fold(graph, node):
            continue
        if _packs(graph, node) or _is_quantized_weight(graph, node):
            continue
        arrays = _known_inputs(graph, node)
        if arrays is None:
            continue
        try:
            values = evaluate([node.proto], arrays, node.outputs, graph.opset)
        except REFUSALS:
            # A dead branch may contain invalid nodes, and ONNX Runtime supports more than the reference does.
            continue
        graph.replace([node], [])
        for name, value in zip(node.outputs, values, strict=True):
            graph.add_constant(name, value)
        changed = True
    return changed


@graph_pass
def reuse_extents(graph: Graph) -> bool:
    """Reads an extent from the first value that has it, or from a constant."""
    homes = homes_of(graph)
    changed = False
    for node in list(graph.nodes):
        wanted = _extents(graph, node) if node.order >= 0 and not graph.is_output(node.outputs[0]) else None
        if wanted is None:
            continue
        source, indices, whole = wanted
        shape = graph.type(source).shape or ()
        if len(indices) > 1 and sorted(indices) == list(range(len(shape))):
            continue  # a permutation of a whole shape: two nodes, as channels-last regions write it
        places = [extent if isinstance(extent := shape[i], int) else homes.get(extent) for i in indices]
        numbers = [p for p in places if isinstance(p, int)]
        if len(numbers) == len(places):
            graph.replace([node], [])
            graph.add_constant(node.outputs[0], np.asarray(numbers, np.int64).reshape(-1 if whole else ()))
            changed = True
        elif all(isinstance(p, int) or (p is not None and _elsewhere(graph, node, source, p)) for p in places):
            _read_at_home(graph, node, [p for p in places if p is not None], whole)
            changed = True
    return changed


@graph_pass
def sum_extents(graph: Graph) -> bool:
    """Replaces the length of a growing cache by the sum of its parts' lengths.

    Shape arithmetic for the kernel that reads the cache then does not wait for the cache: one kernel does both.
    """
    caches = {
        n.outputs[0]: n
        for n in graph.nodes
        if n.op == ops.Concat and not n.domain and len(n.inputs) > 1 and graph.is_output(n.outputs[0])
    }
    changed = False
    for node in list(graph.nodes) if caches else ():
        source, indices, whole = _extents(graph, node) or ("", [], False)
        if source not in caches:
            continue
        axis, rank = graph.attributes(caches[source]).get("axis"), graph.type(source).rank
        if isinstance(axis, int) and rank is not None and indices == [axis % rank]:
            _add_up(graph, node, list(caches[source].inputs), axis % rank, whole=whole)
            changed = True
    return changed


def _add_up(graph: Graph, node: Node, parts: Sequence[str], axis: int, *, whole: bool) -> None:
    """Replace `node` by the sum of the extents of `parts` along an axis."""
    form, to, lengths = (1,) if whole else (), Rewriter(graph, node), list[str]()
    for part in parts:
        extents = graph.type(part).shape
        if extents is not None and isinstance(extents[axis], int):
            lengths.append(to.constant(f"{part}.length", np.full(form, extents[axis], np.int64)))
        else:
            lengths.append(read_extent(to, (part, axis), f"{part}.length", whole=whole))
    total, *rest = lengths
    for length in rest:
        total = to.add(ops.Add, total, length, type_=ValueType(TensorProto.INT64, form))
    to.replace(node.outputs[0], total)
    to.finish()


def homes_of(graph: Graph) -> dict[Dim, Home]:
    """Return the first value that has each named extent: among the inputs, and values whose Shape is taken."""
    homes: dict[Dim, Home] = {}
    # Intermediate values count only if their Shape is taken already: fusion changes which value is the first of a size.
    sources = {n.inputs[0]: graph.producer(n.inputs[0]) for n in graph.nodes if n.op == ops.Shape}
    made = {value: producer for value, producer in sources.items() if producer is not None}
    asked = sorted(made, key=lambda value: (made[value].order, made[value].outputs.index(value)))
    for value in (*sorted(graph.inputs), *asked):
        for axis, extent in enumerate(graph.type(value).shape or ()):
            if isinstance(extent, Int) and (extent.is_name or not extent.is_product):
                homes.setdefault(extent, (value, axis))
    return homes


def _elsewhere(graph: Graph, node: Node, source: str, home: Home) -> bool:
    """Return whether `home` is a value other than `source`, and available before `node`."""
    producer = graph.producer(home[0])
    return home[0] != source and (producer is None or producer.order < node.order)


def _extents(graph: Graph, node: Node) -> tuple[str, list[int], bool] | None:
    """Return the value whose extents a node yields, their indices, and whether as a vector; None if it yields none.

    Such nodes are a Gather or Slice of a Shape, or a Shape with start and end.
    """
    if node.op == ops.Shape and not node.domain:
        rank, ends = graph.type(node.inputs[0]).rank, {a.name: a.i for a in node.proto.attribute}
        some = None if rank is None else list(range(rank))[ends.get("start", 0) : ends.get("end", rank)]
        return None if some is None or len(some) == rank else (node.inputs[0], some, True)
    shape = graph.producer(node.inputs[0]) if node.op in (ops.Gather, ops.Slice) and not node.domain else None
    if (
        shape is None
        or shape.op != ops.Shape
        or shape.domain
        or any(graph.attributes(shape).get(k) for k in ("start", "end"))
    ):
        return None
    source = shape.inputs[0]
    rank = graph.type(source).rank
    arrays = [graph.constant(v) for v in node.inputs[1:] if v]
    if rank is None or not arrays or any(a is None for a in arrays):
        return None
    numbers = [[int(x) for x in a.reshape(-1)] for a in arrays if a is not None]
    if node.op == ops.Gather:
        inside = graph.attributes(node).get("axis", 0) == 0 and all(-rank <= i < rank for i in numbers[0])
        return (
            (source, [i % rank for i in numbers[0]], arrays[0] is not None and arrays[0].ndim > 0) if inside else None
        )
    if any(len(n) != 1 for n in numbers) or len(numbers) < 2:
        return None
    step = numbers[3][0] if len(numbers) > 3 else 1
    return source, list(range(rank))[numbers[0][0] : numbers[1][0] : step], True


def _read_at_home(graph: Graph, node: Node, places: Sequence[int | Home], whole: bool) -> None:
    """Replace `node` by the extents at `places`: a vector of them, or a scalar."""
    to, output = Rewriter(graph, node), node.outputs[0]
    if len(places) == 1 and not isinstance(places[0], int):
        to.replace(output, read_extent(to, places[0], output, whole=whole))
    else:
        to.replace(output, read_extents(to, places, output))
    to.finish()


def read_extents(to: Rewriter, places: Sequence[int | Home], hint: str) -> str:
    """Add nodes that concatenate extents of values, and integers, into one vector, and return that."""
    named = [(f"{hint}.{i}", place) for i, place in enumerate(places)]
    parts = [
        to.constant(name, [place]) if isinstance(place, int) else read_extent(to, place, name, whole=True)
        for name, place in named
    ]
    return to.add(ops.Concat, *parts, axis=0, hint=hint)


def read_extent(to: Rewriter, home: Home, hint: str, *, whole: bool) -> str:
    """Add nodes that read an extent of a value, and return it: as a vector of one element, or a scalar."""
    value, axis = home
    number = to.constant(f"{value}.axis", np.full((1,) if whole else (), axis, np.int64))
    shape_type = ValueType(TensorProto.INT64, (to.graph.type(value).rank,))
    shape = to.add(ops.Shape, value, hint=f"{value}.shape", type_=shape_type)
    return to.add(
        ops.Gather, shape, number, axis=0, hint=hint, type_=ValueType(TensorProto.INT64, (1,) if whole else ())
    )


def redundant_expand_elimination(graph: Graph) -> None:
    """Let readers of an Expand to its input's own shape read that input: the Expand would be a copy."""
    for node in [n for n in graph.nodes if n.op == ops.Expand and not n.domain]:
        (result, *_), (source, *_) = node.outputs, node.inputs
        shape = graph.type(source).shape
        if shape is not None and None not in shape and graph.type(result).shape == shape:
            graph.reroute(result, source)


def common_subexpressions(graph: Graph, among: Callable[[Node], bool] = lambda _: True) -> bool:
    """Merge nodes that compute the same from equal operands into the first one, where `among` holds."""
    first: dict[tuple[object, ...], dict[object, tuple[Node, Sequence[str]]]] = {}
    merged: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == ops.Constant or not (node.domain == DOMAIN or is_repeatable(node)) or not among(node):
            continue
        said = node.domain, node.op, tuple(map(bool, node.outputs))
        reads = [merged.get(v, v) for v in node.inputs]
        alike = first.setdefault((*said, *[_size_key(graph, v) for v in reads]), {})
        if not alike:  # few nodes share all operands: constants and attributes are compared of those alone
            alike[None] = node, reads
            continue
        if (alone := alike.pop(None, None)) is not None:
            alike[_whole_key(graph, *alone)] = alone
        known, _ = alike.setdefault(_whole_key(graph, node, reads), (node, reads))
        if known is not node:
            twins = zip(node.outputs, known.outputs, strict=True)
            merged.update((v, s) for v, s in twins if v and graph.is_read(v) and graph.is_reroutable(v))
    graph.reroute_all(merged)
    return bool(merged)


def _whole_key(graph: Graph, node: Node, reads: Sequence[str]) -> object:
    attributes = tuple(sorted((name, _plain(value)) for name, value in graph.attributes(node).items()))
    return tuple([value_key(graph, v) for v in reads]), attributes


def is_repeatable(node: Node) -> bool:
    """Return whether `node` is a deterministic ONNX operator without subgraphs; found once."""
    if node.repeatable is None:
        node.repeatable = not node.domain and not is_random(node.proto) and not any(True for _ in bodies(node.proto))
    return node.repeatable


def _plain(value: AttributeValue) -> str:
    return value.SerializeToString(deterministic=True).hex() if isinstance(value, Message) else repr(value)


def _size_key(graph: Graph, value: str) -> object:
    """Return what is equal for any two values of one `value_key`, without reading data: a small constant's size."""
    count = graph.element_count(value) or 0
    return count if 0 < count <= FEW else value


def value_key(graph: Graph, value: str) -> object:
    """Return a comparison key of `value`: a small constant's data, otherwise its name."""
    if (graph.element_count(value) or FEW + 1) > FEW:
        return value
    array = graph.constant(value)
    return value if array is None else (array.dtype.str, array.shape, array.tobytes())


def _packs(graph: Graph, node: Node) -> bool:
    """Return whether `node` reads a channels-last convolution's weight, packed for its kernel."""
    if node.op != ops.Transpose:
        return False
    readers = graph.readers(node.outputs[0])
    before = [graph.producer(r.inputs[0]) for r in readers if r.op == ops.Conv and r.inputs[1] == node.outputs[0]]
    return len(before) == len(readers) and all(b is not None and is_nhwc_to_nchw(b) for b in before)


def _is_quantized_weight(graph: Graph, node: Node) -> bool:
    """Return whether `node` quantizes or dequantizes a matrix or more, which stays in 8 bits: no bias, no scalar."""
    if node.op == ops.Cast:
        return is_float8_matrix(graph, node.inputs[0])
    return node.has(Trait.QUANTIZES) and graph.type(node.inputs[0]).rank not in (0, 1)


def _can_fold(graph: Graph, node: Node) -> bool:
    """Return whether constants can replace `node`: no output of the graph is among what it computes."""
    return is_foldable(node.op, node.domain) and not any(not v or graph.is_output(v) for v in node.outputs)


def _known_inputs(graph: Graph, node: Node) -> dict[str, np.ndarray] | None:
    """Return the inputs of `node` if all are constants and folding leaves the file about as big, else None."""
    if node.op in SHAPE_READERS:
        shape = graph.type(node.inputs[0]).static_shape
        return None if shape is None else {node.inputs[0]: np.broadcast_to(np.float32(0), shape)}
    if not all(graph.is_constant(v) for v in node.inputs if v):
        return None
    output = graph.type(node.outputs[0])
    if output.static_shape is None or not output.dtype:
        return None
    arrays = {v: graph.constant(v) for v in node.inputs if v}
    known = {v: a for v, a in arrays.items() if a is not None}
    if len(known) < len(arrays):
        return None
    elements = result_elements(node.proto, known)
    if elements is None:
        return None
    size = elements * onnx.helper.tensor_dtype_to_np_dtype(output.dtype).itemsize
    kept = (size <= SMALL and not _is_other_layout(graph, node)) or _looks_up(node, known, size)
    return known if kept or frees(graph, node, size) or _fills(graph, node, size) else None


def _is_other_layout(graph: Graph, node: Node) -> bool:
    """Return whether `node` is a Transpose between a weight and products: their kernels read the stored layout."""
    value = node.outputs[0]
    if node.op != ops.Transpose or graph.type(value).rank != 2:
        return False
    return any(is_product(r) or r.domain == DOMAIN or value in r.captures for r in graph.readers(value))


def is_product(node: Node) -> bool:
    """Return whether `node` is a matrix product, of floats or of integers."""
    return node.has(Trait.MATRIX_PRODUCT) or node.op == ops.MatMulInteger


def is_reshape(node: Node) -> bool:
    """Return whether a node is a Reshape, with any allowzero: its result follows from types."""
    return node.op == ops.Reshape and not node.domain


def retarget(graph: Graph, node: Node, target: Sequence[int]) -> None:
    """Set the target of a Reshape or Expand, in which a 0 copies."""
    substitute(graph, node, shape=target, **({"allowzero": None} if node.written.get("allowzero") else {}))


def _looks_up(node: Node, known: dict[str, np.ndarray], size: int) -> bool:
    """Return whether `node` gathers from a constant table a result small enough to store instead."""
    return node.op in (ops.Gather, ops.Einsum) and size <= min(TABLED, SPREAD * max(a.nbytes for a in known.values()))


def _fills(graph: Graph, node: Node, size: int) -> bool:
    """Return whether `node` fills a product's weight with one value, in a model that this does not enlarge much."""
    if node.op != ops.ConstantOfShape or size + sum(tensor_bytes(t) for t in graph.initializers.values()) > FILLED:
        return False
    return any(r.op in WEIGHED and node.outputs[0] in r.inputs[1:] for r in graph.readers(node.outputs[0]))


def frees(graph: Graph, node: Node, size: int) -> bool:
    """Return whether folding `node` releases weights as large as its result: what it alone reads, as a Concat of parts
    does, or what it and other parts divide, as the gates of a recurrent layer do.
    """
    released = 0
    for value in dict.fromkeys(node.inputs):
        array = graph.constant(value)
        if array is not None and (graph.is_let_go(value) or _is_divided(graph, value)):
            released += array.nbytes
    return released >= size


def _is_divided(graph: Graph, value: str) -> bool:
    """Return whether a constant is read by Slices and Splits alone, which all fold, and keep no more than there is."""
    if graph.is_output(value) or (value not in graph.initializers and value not in graph.producers):
        return False
    readers, kept = graph.readers(value), 0
    for reader in readers:
        if reader.op not in (ops.Slice, ops.Split) or reader.inputs[0] != value or not _can_fold(graph, reader):
            return False
        shapes = [graph.type(part).static_shape for part in reader.outputs]
        if not all(graph.is_constant(v) for v in reader.inputs[1:] if v):
            return False
        if any(shape is None for shape in shapes):
            return False
        kept += sum(math.prod(shape) for shape in shapes if shape is not None)
    return bool(readers) and kept <= (graph.element_count(value) or 0)
