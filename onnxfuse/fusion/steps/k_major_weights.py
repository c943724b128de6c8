"""K-major weight layout [n, k] for matrix products: the terms of a column are contiguous.

Hopper's tensor cores read both TF32 factors K-major, and all tensor cores 8-bit integers; of few rows narrow strips of
columns are brought from memory in longer runs. The weight is transposed once, when the model is optimized.
"""

import math
from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.cuda.costs import library
from onnxfuse.files import detached
from onnxfuse.fusion.region.attempt import Attempt, GraphContext
from onnxfuse.fusion.region.weight_index import SUFFIX, WeightIndex
from onnxfuse.fusion.steps.stored_transposes import transpose_inside
from onnxfuse.graph.constant_folding import is_product
from onnxfuse.graph.float8 import multiplies_float8, widens_float8
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.model.nested import graphs_in, readers_of
from onnxfuse.shapes.types import ValueType


def store_k_major(attempt: Attempt) -> None:
    """Give the products of float32, 8-bit integers or few rows weights [n, k], where they are constants [k, n].

    Weights read through a Transpose, of any type, are read as stored. The new nodes are those of the op's body alone:
    the graph keeps the products.
    """
    graph, transposes = attempt.graph, attempt.around.transposes
    # MatMul(x, w) -> MatMul(x, Transpose(v)), Gemm(x, w) -> Gemm <transB = 1> (x, v): v is w transposed.
    # Cast(w) -> Transpose(Cast(v)): of float8, which ONNX Runtime does not transpose.
    found: list[Node] = []
    for node in attempt.nodes:
        transpose = transposes.get(node.inputs[1]) if is_product(node) else None
        to = Rewriter(graph, node)
        if transpose is not None:
            _read_stored(node, transpose, to)
        elif _wants(graph, node, attempt.around):
            _store_transposed(node, to, attempt.around.weights)
        elif _widens_weight(graph, node):
            _widen_transposed(node, to, attempt.around.weights)
        found.extend(to.draft() if to.nodes else [node])
    attempt.nodes = found


K_MAJOR = (TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8)
"""Element types whose factors tensor cores read K-major alone: no instruction transposes 8 or 32 bits."""


def depends_on_itself(graph: Graph, product: Node, around: GraphContext) -> bool:
    """Return whether a product's weight is stored as it would be if the graph had no other weights and Transposes."""
    constants = {v: graph.constant(v) for v in product.inputs[:2] if graph.is_constant(v)}
    weight, widening = constants.get(product.inputs[1]), graph.producer(product.inputs[1])
    if widening is not None and _widens_weight(graph, widening):
        return False
    if product.inputs[1] in around.transposes or any(data is None for data in constants.values()):
        return False
    if weight is None or not _wants(graph, product, around):
        return True
    return around.weights.transpose_of(product.inputs[1], weight) is None


def _wants(graph: Graph, node: Node, around: GraphContext) -> bool:
    if not is_product(node):
        return False
    left, weight = graph.type(node.inputs[0]), graph.type(node.inputs[1])
    if left.dtype not in K_MAJOR and not _has_few_rows(left, weight, around.decodes):
        return False
    standing = weight.shape is not None and len(weight.shape) == 2 and graph.is_constant(node.inputs[1])
    return standing and not graph.attributes(node).get("transB", 0)


def _widens_weight(graph: Graph, node: Node) -> bool:
    """Return whether a node writes a float8 weight as float32 for products of float8."""
    if not widens_float8(graph, node) or not graph.is_constant(node.inputs[0]):
        return False
    return all(multiplies_float8(graph, r) and r.inputs[1] == node.outputs[0] for r in graph.readers(node.outputs[0]))


def _has_few_rows(left: ValueType, weight: ValueType, decodes: bool) -> bool:
    """Return whether a left factor of 16 bits has so few rows that the kernel for these reads the weight.

    In a graph that `decodes` an open number of rows is one.
    """
    if left.dtype not in (TensorProto.FLOAT16, TensorProto.BFLOAT16) or left.shape is None or weight.shape is None:
        return False
    rows = [d if isinstance(d, int) else 1 for d in left.shape[:-1] if decodes or isinstance(d, int)]
    known = len(rows) == len(left.shape) - 1 and all(isinstance(d, int) and d % 8 == 0 for d in weight.shape)
    return known and 0 < math.prod(rows) <= library.costs().k_major_rows


def _read_stored(node: Node, transpose: Node, to: Rewriter) -> None:
    """Replace a product by a substitute weight for a Transpose: it reads the Transpose's operand."""
    # Gemm(x, Transpose(w)) -> Gemm <transB = 1> (x, w); MatMul(x, Transpose(w)) has it in its body.
    if node.op == ops.Gemm:
        to.copy(node, {1: transpose.inputs[0]}, transB=0 if to.graph.attributes(node).get("transB") else 1)
    else:
        to.copy(node, {1: transpose_inside(to, transpose, _name(node))})


def _name(product: Node) -> str:
    """Return a unique name of the Transpose before a product."""
    return f"{product.proto.name}/terms_last" if product.proto.name else ""


def _store_transposed(node: Node, to: Rewriter, weights: WeightIndex) -> None:
    """Replace a product by one that reads a transposed weight, unless the weight's data was not loaded."""
    graph, stored = to.graph, _transposed(to.graph, node.inputs[1], weights)
    if stored is None:
        return
    if node.op == ops.Gemm:
        to.copy(node, {1: stored}, transB=1)
        return
    type_ = ValueType(graph.type(stored).dtype, graph.type(node.inputs[1]).shape)
    back = to.add(ops.Transpose, stored, perm=[1, 0], hint=f"{stored}.back", type_=type_, name=_name(node))
    to.copy(node, {1: back})


def _widen_transposed(node: Node, to: Rewriter, weights: WeightIndex) -> None:
    """Replace the Cast of a weight by that of a transposed one, and a Transpose."""
    graph, stored = to.graph, _transposed(to.graph, node.inputs[0], weights)
    if stored is None:
        return
    type_ = ValueType(graph.type(node.outputs[0]).dtype, graph.type(stored).shape)
    wide = to.copy(node, {0: stored}, hint=f"{stored}.wide", type_=type_)
    to.add(ops.Transpose, wide, perm=[1, 0], output=node.outputs[0], name=_name(node))


def _transposed(graph: Graph, own: str, weights: WeightIndex) -> str | None:
    """Return the name of a weight's transposed form, which the graph then has; None if the weight's data was not
    loaded."""
    weight = graph.constant(own)
    if weight is None:
        return None
    stored = weights.transpose_of(own, weight) or f"{own}{SUFFIX}"
    maker = graph.producer(stored)
    if maker is not None and _makes_turned(maker.proto):  # of an earlier `store_once`, which will make it again
        graph.replace([maker], [])
    if stored not in graph.initializers:
        graph.add_constant(stored, weight.T)
    return stored


def store_once(graph: Graph) -> None:
    """Express transposed weights as Transposes of weights also read untransposed: the file stores one.

    ONNX Runtime folds float32 constants when it creates a session, so both layouts are on the GPU.
    """
    for turned in [name for name in graph.initializers if name.endswith(SUFFIX)]:
        own, readers = turned.removesuffix(SUFFIX), graph.readers(turned)
        here = own in graph.initializers or own in graph.producers
        if readers and here and graph.is_constant(own) and (graph.readers(own) or graph.is_output(own)):
            del graph.initializers[turned]
            to = Rewriter(graph, readers[0])
            to.add(ops.Transpose, own, perm=[1, 0], output=turned)
            to.copy(readers[0])
            to.finish()


def restore_weights(model: ModelProto) -> None:
    """Restore the original weights of unfused products, in place: reverts `store_k_major` on those nodes.

    Weights that a fused op still reads stay.
    """
    # MatMul(x, Transpose(v)) -> MatMul(x, w), Gemm <transB = 1> (x, v) -> Gemm(x, w)
    for holder in (model.graph, *(g for n in model.graph.node for g in graphs_in(n))):
        turned = [(t.name, t) for t in holder.initializer if t.name.endswith(SUFFIX)]
        turned += [(n.output[0], n) for n in holder.node if n.op_type == ops.Transpose and _makes_turned(n)]
        for name, maker in turned:
            readers = list(readers_of(holder, name))
            if readers and all(_undone(graph, node) for graph, node in readers):
                _turn_one_back(holder, name, maker, readers)


def _makes_turned(transpose: NodeProto) -> bool:
    return str(transpose.output[0]) == f"{transpose.input[0]}{SUFFIX}"


def _undone(graph: GraphProto, node: NodeProto) -> bool:
    if node.op_type == ops.Cast:
        return all(_undone(graph, n) and n.op_type == ops.Transpose for _, n in readers_of(graph, node.output[0]))
    if node.op_type == ops.Gemm:
        return node.input[1].endswith(SUFFIX) and any(a.name == "transB" and a.i for a in node.attribute)
    return node.op_type == ops.Transpose and not node.domain


def _turn_one_back(
    holder: GraphProto, name: str, maker: TensorProto | NodeProto, readers: Sequence[tuple[GraphProto, NodeProto]]
) -> None:
    own = name.removesuffix(SUFFIX)
    if isinstance(maker, NodeProto):
        holder.node.remove(maker)
    elif any(t.name == own for t in holder.initializer):
        holder.initializer.remove(maker)
    else:
        maker.CopyFrom(
            numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(detached.attached(maker)).T), own)
        )
    for graph, node in readers:
        if node.op_type == ops.Gemm:
            node.input[1] = own
            node.attribute.remove(next(a for a in node.attribute if a.name == "transB"))
            continue
        if node.op_type == ops.Cast:
            transposes = [n for _, n in readers_of(graph, node.output[0])]
            node.input[0], node.output[0] = own, transposes[0].output[0]
            graph.node.remove(transposes[0])
            _remove_transposes(graph, transposes[1:], node.output[0])
        else:
            _remove_transposes(graph, [node], own)


def _remove_transposes(graph: GraphProto, transposes: Sequence[NodeProto], source: str) -> None:
    """Remove nodes whose readers read `source` instead."""
    for node in transposes:
        for _, reader in list(readers_of(graph, node.output[0])):
            reader.input[:] = [source if v == node.output[0] else v for v in reader.input]
        graph.node.remove(node)
