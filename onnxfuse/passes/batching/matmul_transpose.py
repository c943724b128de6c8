"""Absorb the two Transposes around a product by weights: multiply along the other axis instead.

Token-mixing layers transpose [batch, tokens, channels], apply linear layers along the tokens, and transpose back.
Multiplying the transposed weight (transposed once, offline) by the untransposed tokens gives the same result; biases
are added along its rows.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto

from onnxfuse.cuda import is_pointwise
from onnxfuse.graph.constant_folding import is_repeatable
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.passes.views.transposes import order_of
from onnxfuse.shapes.types import ValueType

TYPES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""What the rule left_weight multiplies. It takes every product that is written here: ONNX Runtime multiplies a batch by
a left factor that has none with a list of pointers, which it copies to the GPU in each run."""

ALIGNED = 8
"""For that rule the channels, columns of the products, are a multiple of so many."""

LEAST = 32
"""Channels and rows of a weight, at least, for that rule: half of the least tile of the kernels. An estimate."""

MOST_TERMS = 4096
"""Of a sum, for that rule, as for the rule gemm."""

SUFFIX = ".turned"
"""What the name of a turned weight has after that of the weight."""


@dataclass
class _Region:
    """What is computed between Transposes of the last two axes."""

    rank: int
    begins: dict[Node, None] = field(default_factory=dict)
    work: dict[Node, None] = field(default_factory=dict)
    ends: dict[Node, None] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)
    """Those that are turned over."""


def absorb_matmul_transposes(graph: Graph) -> bool:
    """Let products by weights between Transposes run along the other axis; return whether any did.

    Nothing is changed where not all that is computed between them is products by weights and elementwise work.
    """
    changed = False
    for node in [n for n in graph.nodes if _begins(graph, n)]:
        region = _between(graph, node) if node.order >= 0 else None
        if region is not None:
            _unturn(graph, region)
            changed = True
    return changed


# ---- looking


def _begins(graph: Graph, node: Node) -> bool:
    """Return whether `node` turns tokens over whose channels are worth a product's columns."""
    if not _exchanges(graph, node) or _is_image(graph, node.inputs[0]):
        return False
    known = graph.type(node.inputs[0])
    beside = known.shape[-1] if known.shape is not None else None
    return known.dtype in TYPES and isinstance(beside, int) and beside >= LEAST and beside % ALIGNED == 0


def _exchanges(graph: Graph, node: Node) -> bool:
    """Return whether `node` is a Transpose that exchanges the last two of three axes or more."""
    order = order_of(graph, node) if node.op == "Transpose" and not node.domain else None
    if order is None or len(order) < 3:
        return False
    *leading, before, last = range(len(order))
    return order == [*leading, last, before]


def _is_image(graph: Graph, value: str) -> bool:
    """Return whether a value is an image [n, c, h * w]: it has its channels last in the end, and turning it is free."""
    maker = graph.producer(value)
    return maker is not None and not maker.domain and maker.op in ("Reshape", "Flatten")


def _between(graph: Graph, first: Node) -> _Region | None:
    """Return what stands between `first` and the Transposes that turn all of it back; None where not all is."""
    region = _Region(graph.type(first.inputs[0]).rank or 0, {first: None}, values={first.outputs[0]})
    waiting = [first.outputs[0]]
    while waiting:
        value = waiting.pop()
        if graph.is_output(value):
            return None
        for reader in graph.readers(value):
            if reader in region.work or reader in region.ends:
                continue
            if _exchanges(graph, reader):
                region.ends[reader] = None
                continue
            begins = _joins(graph, reader, region)
            if begins is None:
                return None
            region.work[reader] = None
            region.begins.update(dict.fromkeys(begins))
            new = [n.outputs[0] for n in (reader, *begins)]
            waiting += new
            region.values.update(new)
    # What is read beside a turned value may have joined after that: what has not is a constant.
    whole = all(v in region.values or not v or graph.is_constant(v) for n in region.work for v in n.inputs)
    return region if whole and region.ends and any(_is_product(n) for n in region.work) else None


def _is_product(node: Node) -> bool:
    return node.op == "MatMul" and not node.domain


def _is_weight(graph: Graph, value: str) -> bool:
    """Return whether a value is a constant [terms, rows] that a kernel multiplies as [rows, terms].

    One that is read as it is, too, as embeddings are, would be stored twice.
    """
    array = graph.constant(value)
    if array is None or array.ndim != 2 or graph.type(value).dtype not in TYPES:
        return False
    if not all(_is_product(r) and r.inputs[0] != value for r in graph.readers(value)):
        return False
    return 0 < array.shape[0] <= MOST_TERMS and bool(array.shape[1] >= LEAST)


def _joins(graph: Graph, node: Node, region: _Region) -> list[Node] | None:
    """Return the Transposes that a node of the region reads beside turned values; None where it cannot be one of it."""
    if len(node.outputs) != 1 or not is_repeatable(node) or graph.type(node.outputs[0]).rank != region.rank:
        return None
    if _is_product(node):
        left, right = node.inputs
        return [] if left in region.values and _is_weight(graph, right) else None
    if not is_pointwise(node.op, node.domain):
        return None
    begins = []
    for value in node.inputs:
        if not value or value in region.values:
            continue
        maker = graph.producer(value)
        if graph.is_constant(value):
            if (graph.type(value).rank or 0) > region.rank or graph.constant(value) is None:
                return None
        elif maker is None:
            return None
        elif _begins(graph, maker):
            begins.append(maker)
        elif not (_is_product(maker) or is_pointwise(maker.op, maker.domain)):
            return None
    return begins


# ---- changing


def _unturn(graph: Graph, region: _Region) -> None:
    """Let each of the region's nodes do the same with the values as they are; then nothing reads its begins."""
    straight = {n.outputs[0]: n.inputs[0] for n in region.begins}
    for node in sorted((*region.work, *region.ends), key=lambda n: n.order):
        if node in region.ends:
            same = onnx.helper.make_node("Identity", [straight[node.inputs[0]]], [node.outputs[0]], node.proto.name)
            graph.replace([node], [Node(same)])
            continue
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        if _is_product(node):
            proto.input[:] = [_turned(graph, node.inputs[1]), straight[node.inputs[0]]]
        else:
            proto.input[:] = [straight.get(v) or (_turned(graph, v) if v else "") for v in node.inputs]
        value = node.outputs[0]
        proto.output[0] = straight[value] = graph.fresh(f"{value}.straight")
        known = graph.type(value)
        assert known.shape is not None
        *leading, rows, columns = known.shape
        graph.types[straight[value]] = ValueType(known.dtype, (*leading, columns, rows))
        graph.replace([node], [Node(proto)])


def _turned(graph: Graph, value: str) -> str:
    """Return a constant with its last two axes exchanged; one number is itself."""
    if graph.element_count(value) == 1:
        return value
    array = graph.constant(value)
    assert array is not None
    turned = np.atleast_2d(array).swapaxes(-1, -2)
    name = f"{value}{SUFFIX}"
    known = graph.constant(name) if name in graph.initializers else None
    if known is None or not np.array_equal(known, turned):
        name = graph.fresh(name)
        graph.add_constant(name, turned)
    return name
