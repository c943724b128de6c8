"""Absorb the two Transposes around a product by weights: multiply along the other axis instead.

Token-mixing layers transpose [batch, tokens, channels], apply linear layers along the tokens, and transpose back.
Multiplying the transposed weight (transposed once, offline) by the untransposed tokens gives the same result; biases
are added along its rows.
"""

from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.cuda.costs import library
from onnxfuse.cuda.isa.factors import ALIGNED
from onnxfuse.graph.channels import order_of
from onnxfuse.graph.constant_folding import is_repeatable
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, forward
from onnxfuse.ops import Trait
from onnxfuse.shapes.types import ValueType

TYPES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""Element types that the rule left_weight multiplies. It must fuse every product written here: ONNX Runtime multiplies
a batch by an unbatched left factor through a pointer array, which it copies to the GPU in each run.
"""

SUFFIX = ".turned"
"""Name suffix of a transposed weight."""


@dataclass
class _Region:
    """Nodes between Transposes of the last two axes."""

    rank: int
    begins: dict[Node, None] = field(default_factory=dict)
    work: dict[Node, None] = field(default_factory=dict)
    ends: dict[Node, None] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)
    """The transposed values."""


@graph_pass
def absorb_matmul_transposes(graph: Graph) -> bool:
    """Runs products between two Transposes along the other axis, without the Transposes.

    Nothing changes unless everything between the Transposes is a product by a weight or elementwise.
    """
    changed = False
    for node in [n for n in graph.nodes if _begins(graph, n)]:
        region = _between(graph, node) if node.order >= 0 else None
        if region is not None:
            _unturn(graph, region)
            changed = True
    return changed


# ---- analysis


def _begins(graph: Graph, node: Node) -> bool:
    """Return whether `node` transposes tokens with enough channels to be the columns of a product."""
    if not _exchanges(graph, node) or _is_image(graph, node.inputs[0]):
        return False
    type_ = graph.type(node.inputs[0])
    channels = type_.shape[-1] if type_.shape is not None else None
    return (
        type_.dtype in TYPES
        and isinstance(channels, int)
        and channels >= library.costs().product_least
        and channels % ALIGNED == 0
    )


def _exchanges(graph: Graph, node: Node) -> bool:
    """Return whether `node` is a Transpose that swaps the last two of three or more axes."""
    order = order_of(graph, node) if node.op == ops.Transpose and not node.domain else None
    if order is None or len(order) < 3:
        return False
    *leading, before, last = range(len(order))
    return order == [*leading, last, before]


def _is_image(graph: Graph, value: str) -> bool:
    """Return whether a value is an image [n, c, h * w]: it becomes channels last, where the Transpose is free."""
    maker = graph.producer(value)
    return maker is not None and maker.has(Trait.RESHAPE) and not maker.has(Trait.UNIT_AXES)


def _between(graph: Graph, first: Node) -> _Region | None:
    """Return the region from `first` to the Transposes that undo it on all paths; None if one path has none."""
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
    # Other operands may have joined the region after this node was visited: those that have not must be constants.
    whole = all(v in region.values or not v or graph.is_constant(v) for n in region.work for v in n.inputs)
    return region if whole and region.ends and any(_is_product(n) for n in region.work) else None


def _is_product(node: Node) -> bool:
    return node.op == ops.MatMul and not node.domain


def _is_weight(graph: Graph, value: str) -> bool:
    """Return whether a value is a constant [terms, rows] that a kernel multiplies as [rows, terms].

    A constant that is also read untransposed, as embeddings are, would be stored twice.
    """
    array = graph.constant(value)
    if array is None or array.ndim != 2 or graph.type(value).dtype not in TYPES:
        return False
    if not all(_is_product(r) and r.inputs[0] != value for r in graph.readers(value)):
        return False
    sizes, (terms, rows) = library.costs(), array.shape
    return bool(0 < terms <= sizes.product_terms and rows >= sizes.product_least)


def _joins(graph: Graph, node: Node, region: _Region) -> list[Node] | None:
    """Return the Transposes that produce a node's other operands; None if the node cannot join the region."""
    if len(node.outputs) != 1 or not is_repeatable(node) or graph.type(node.outputs[0]).rank != region.rank:
        return None
    if _is_product(node):
        left, right = node.inputs
        return [] if left in region.values and _is_weight(graph, right) else None
    if not node.is_elementwise:
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
        elif not (_is_product(maker) or maker.is_elementwise):
            return None
    return begins


# ---- rewriting


def _unturn(graph: Graph, region: _Region) -> None:
    """Rewrite each node of the region for untransposed values; the region's first Transposes then have no readers."""
    straight = {n.outputs[0]: n.inputs[0] for n in region.begins}
    for node in sorted((*region.work, *region.ends), key=lambda n: n.order):
        if node in region.ends:
            forward(graph, node, straight[node.inputs[0]])
            continue
        if _is_product(node):
            reads = [_transposed(graph, node.inputs[1]), straight[node.inputs[0]]]
        else:
            reads = [straight.get(v) or (_transposed(graph, v) if v else "") for v in node.inputs]
        value, old_type, to = node.outputs[0], graph.type(node.outputs[0]), Rewriter(graph, node)
        assert old_type.shape is not None
        *leading, rows, columns = old_type.shape
        type_ = ValueType(old_type.dtype, (*leading, columns, rows))
        straight[value] = to.copy(node, reads, hint=f"{value}.straight", type_=type_)
        to.finish()


def _transposed(graph: Graph, value: str) -> str:
    """Return a constant with its last two axes swapped; scalars are returned as they are."""
    if graph.element_count(value) == 1:
        return value
    array = graph.constant(value)
    assert array is not None
    transposed = np.atleast_2d(array).swapaxes(-1, -2)
    name = f"{value}{SUFFIX}"
    existing = graph.constant(name) if name in graph.initializers else None
    if existing is None or not np.array_equal(existing, transposed):
        name = graph.fresh(name)
        graph.add_constant(name, transposed)
    return name
