"""Pad the rows of a weight that is a product's left factor to 16-byte boundaries.

Hopper's TMA requires that alignment. A weight of 196 terms is stored with rows of 200, padded with zeros that no
product reads; it is padded once, when the model is optimized.
"""

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.files import detached
from onnxfuse.fusion.region.attempt import Attempt
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.model.nested import graphs_in, readers_of
from onnxfuse.shapes.types import ValueType

BOUNDARY = 16
"""Alignment in bytes."""

SUFFIX = ".padded"
"""Name suffix of a padded weight."""

SINCE = 10
"""First operator set whose Slice reads its ranges as inputs."""


def pad_rows(attempt: Attempt) -> None:
    """Pad the rows of constant left factors [m, k] of products where k is misaligned.

    The new nodes are those of the op's body alone: the graph keeps the products.
    """
    graph = attempt.graph
    # MatMul(w, x) -> MatMul(Slice(v, 0, k, axis -1), x): v is w with zero-padded rows.
    found: list[Node] = []
    for node in attempt.nodes:
        weight = _unaligned(graph, node)
        found.extend([node] if weight is None else _pad(graph, node, weight))
    attempt.nodes = found


def _unaligned(graph: Graph, node: Node) -> np.ndarray | None:
    """Return the weight of a product with misaligned rows, None if there is none."""
    if node.op != ops.MatMul or node.domain or graph.opset < SINCE or graph.type(node.inputs[0]).rank != 2:
        return None
    weight = graph.constant(node.inputs[0])
    return weight if weight is not None and weight.shape[1] * weight.itemsize % BOUNDARY else None


def _pad(graph: Graph, node: Node, weight: np.ndarray) -> list[Node]:
    (rows, terms), to = weight.shape, Rewriter(graph, node)
    stored = f"{node.inputs[0]}{SUFFIX}"
    if stored not in graph.initializers:
        graph.add_constant(stored, np.pad(weight, ((0, 0), (0, -terms % (BOUNDARY // weight.itemsize)))))
    type_, name = ValueType(graph.type(stored).dtype, (rows, terms)), node.proto.name and f"{node.proto.name}/cut"
    cut = to.add(ops.Slice, stored, starts=[0], ends=[terms], axes=[-1], hint=f"{stored}.cut", type_=type_, name=name)
    to.copy(node, {0: cut})
    return to.draft()


def restore_rows(model: ModelProto) -> None:
    """Restore the unpadded weights of unfused products, in place: reverts `pad_rows` on those nodes.

    Weights that a fused op still reads stay.
    """
    # MatMul(Slice(v, 0, k, axis -1), x) -> MatMul(w, x)
    for holder in (model.graph, *(g for n in model.graph.node for g in graphs_in(n))):
        for tensor in [t for t in holder.initializer if t.name.endswith(SUFFIX)]:
            readers = list(readers_of(holder, tensor.name))
            terms = {_terms(graph, node, tensor.name) for graph, node in readers}
            if len(terms) == 1 and (cut := terms.pop()) is not None:
                _cut_one_back(holder, tensor, readers, cut)


def _terms(graph: GraphProto, node: NodeProto, weight: str) -> int | None:
    """Return the row length to which a node slices a padded weight, None for any other node."""
    if node.op_type != ops.Slice or node.domain or len(node.input) != 4 or node.input[0] != weight:
        return None
    known = {t.name: t for t in graph.initializer if t.name in node.input[1:]}
    numbers = [numpy_helper.to_array(known[v]).tolist() if v in known else None for v in node.input[1:]]
    match numbers:
        case [[0], [int(terms)], [-1]] if terms > 0:
            return terms
    return None


def _cut_one_back(
    holder: GraphProto, tensor: TensorProto, readers: Sequence[tuple[GraphProto, NodeProto]], terms: int
) -> None:
    own = tensor.name.removesuffix(SUFFIX)
    if any(t.name == own for t in holder.initializer):
        holder.initializer.remove(tensor)
    else:
        rows = np.ascontiguousarray(numpy_helper.to_array(detached.attached(tensor))[:, :terms])
        tensor.CopyFrom(numpy_helper.from_array(rows, own))
    for graph, node in readers:
        for _, reader in list(readers_of(graph, node.output[0])):
            reader.input[:] = [own if v == node.output[0] else v for v in reader.input]
        numbers = node.input[1:]
        graph.node.remove(node)
        for one in [t for t in graph.initializer if t.name in numbers and not any(readers_of(graph, t.name))]:
            graph.initializer.remove(one)
