"""Write products by weights in few bits in one form, MatMulNBits of ONNX Runtime, whatever tool wrote them.

Tools write DequantizeLinear of int4, uint4, int8 or uint8 weights, with a scale for each block, each column or all, and then
MatMul or Gemm. MatMulNBits has a kernel in ONNX Runtime, and holds any of these: numbers without a sign, a scale and a
zero point for each block of terms of a column. A column's one scale is that of each of its blocks.

Products of quantized activations sum integers, or their weights are dequantized once: these are none of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.ops.registry import MICROSOFT
from onnxfuse.passes.quantization.weights import FLOATS, dequantizing
from onnxfuse.symbolic.packing import LEAST_BLOCK, Packing

SIGNED = {TensorProto.INT4: 4, TensorProto.INT8: 8}
UNSIGNED = {TensorProto.UINT4: 4, TensorProto.UINT8: 8}
BITS = SIGNED | UNSIGNED
"""Bits of the element types that become numbers without a sign."""
MOST_BLOCK = 128
"""Terms of a block where a column has one scale: one of the sizes for which ONNX Runtime has kernels."""


@dataclass(frozen=True)
class _Weight:
    """A dequantized constant as a right factor."""

    nodes: tuple[Node, ...]
    """What computes it, the DequantizeLinear first."""
    transposed: bool
    """Whether it lies [n, k] as the DequantizeLinear reads it."""


@graph_pass
def pack_weights(graph: Graph) -> bool:
    """Writes products by dequantized weights of 4 or 8 bits as MatMulNBits, and its scales in one shape."""
    changed, packed = False, dict[tuple[str, bool], tuple[str, ...] | None]()
    for node in list(graph.nodes):
        if node.domain == MICROSOFT and node.op == ops.MatMulNBits:
            changed |= _reshape_parameters(graph, node)
        elif not node.domain and node.op in (ops.MatMul, ops.Gemm):
            changed |= _pack(graph, node, packed)
    if changed:
        graph.eliminate_dead_code()
    return changed


# ---- MatMulNBits


def _reshape_parameters(graph: Graph, node: Node) -> bool:
    """Give scales and zero points a row for each column; earlier files have them in one line."""
    columns, read = graph.attributes(node).get("N", 0), dict[int, str]()
    for position in (2, 3):
        value = node.inputs[position] if position < len(node.inputs) else ""
        array = graph.constant(value) if value and graph.type(value).rank == 1 else None
        if array is not None and columns and array.size % columns == 0:
            read[position] = graph.fresh(f"{value}.rows")
            graph.add_constant(read[position], array.reshape(columns, -1))
    if read:
        to = Rewriter(graph, node)
        to.copy(node, read)
        to.finish()
    return bool(read)


# ---- DequantizeLinear and a product


def _pack(graph: Graph, node: Node, packed: dict[tuple[str, bool], tuple[str, ...] | None]) -> bool:
    weight = _weight(graph, node)
    if weight is None or graph.type(node.inputs[0]).dtype not in FLOATS or (graph.type(node.inputs[0]).rank or 0) < 2:
        return False
    key = (weight.nodes[0].outputs[0], weight.transposed)
    if key not in packed:
        packed[key] = _packed(graph, weight, graph.type(node.inputs[0]).dtype)
    parts = packed[key]
    if parts is None:
        return False
    numbers, scales, *zeros = parts
    shape = graph.type(numbers).shape
    assert shape is not None
    n, blocks, of_block = map(int, shape)
    bits = BITS[graph.type(weight.nodes[0].inputs[0]).dtype]
    block = of_block * 8 // bits
    to = Rewriter(graph, node)
    product = to.add(
        ops.MatMulNBits, node.inputs[0], numbers, scales, *zeros, domain=MICROSOFT, type_=graph.type(node.outputs[0]),
        K=blocks * block, N=n, bits=bits, block_size=block, name=node.name,
    )  # fmt: skip
    if len(node.inputs) > 2 and node.inputs[2]:
        product = to.add(ops.Add, product, node.inputs[2], type_=graph.type(node.outputs[0]))
    to.replace(node.outputs[0], product)
    to.finish()
    return True


def _weight(graph: Graph, node: Node) -> _Weight | None:
    """Return the weight in few bits that a product multiplies its left factor by; None if there is none."""
    known = graph.attributes(node)
    if node.op == ops.Gemm and (known.get("transA") or known.get("alpha", 1.0) != 1.0 or known.get("beta", 1.0) != 1.0):
        return None
    value, transposed, behind = node.inputs[1], bool(node.op == ops.Gemm and known.get("transB")), list[Node]()
    maker = graph.producer(value)
    if maker is not None and maker.op == ops.Transpose and not maker.domain:
        value, transposed = maker.inputs[0], not transposed
        behind.append(maker)
    nodes = dequantizing(graph, value)
    if not nodes or dequantizing(graph, node.inputs[0]) or not all(map(graph.is_constant, filter(None, nodes[0].inputs))):
        return None
    if graph.type(nodes[0].inputs[0]).dtype not in BITS or graph.type(nodes[0].inputs[0]).rank != 2:
        return None
    return _Weight((*nodes, *behind), transposed)


def _packed(graph: Graph, weight: _Weight, dtype: int) -> tuple[str, ...] | None:
    """Add the constants of a weight in the form of MatMulNBits, for products of this element type, and return their
    names: numbers, scales, and zero points if they are not the middle of the numbers. None if it has no such form."""
    node = weight.nodes[0]
    value, scale, *zero = (graph.constant(v) for v in node.inputs if v)
    if value is None or scale is None or any(z is None for z in zero):
        return None
    bits, offset = BITS[graph.type(node.inputs[0]).dtype], 0
    if graph.type(node.inputs[0]).dtype in SIGNED:
        offset = 1 << bits - 1
    block = _block(graph, weight, value.shape, scale)
    element = helper.tensor_dtype_to_np_dtype(dtype)
    exact = np.array_equal(scale.astype(element).astype(scale.dtype), scale)
    if block is None or not exact:
        return None
    numbers = value.astype(np.int16) + offset
    numbers = numbers if weight.transposed else numbers.T
    packing = Packing(bits, block, numbers.shape[1])
    parameters = [_of_blocks(graph, weight, p, numbers.shape[0], packing) for p in (scale, *zero)]
    zeros = parameters[1].astype(np.int16) + offset if zero else np.full_like(parameters[0], offset, np.int16)
    arrays = [packing.pack(numbers), parameters[0].astype(element)]
    if (zeros != packing.middle).any():
        arrays.append(packing.pack_zero_points(zeros))
    return tuple(_added(graph, *named) for named in zip(_names(node), arrays, strict=False))


def _names(node: Node) -> Iterator[str]:
    yield f"{node.inputs[0]}.packed"
    yield f"{node.inputs[1]}.blocks"
    yield f"{node.inputs[0]}.zero_points"


def _added(graph: Graph, hint: str, array: np.ndarray) -> str:
    name = graph.fresh(hint)
    graph.add_constant(name, np.ascontiguousarray(array))
    return name


def _block(graph: Graph, weight: _Weight, shape: tuple[int, ...], scale: np.ndarray) -> int | None:
    """Return the terms of a block: those that share a scale, or, of a column with one scale, some of them."""
    node, along = weight.nodes[0], 1 if weight.transposed else 0
    terms, written = shape[along], node.written.get("block_size", 0)
    assert isinstance(written, int)
    if scale.ndim == 2 and written:
        axis = node.written.get("axis", 1)
        return written if axis == along and Packing(4, written, terms).reason is None else None
    if scale.size != 1 and (scale.ndim != 1 or node.written.get("axis", 1) != 1 - along):
        return None
    largest = terms & -terms
    return min(largest, MOST_BLOCK) if largest >= LEAST_BLOCK else None


def _of_blocks(graph: Graph, weight: _Weight, parameters: np.ndarray, n: int, packing: Packing) -> np.ndarray:
    """Return scales or zero points as one for each block of a column, [n, blocks]."""
    if parameters.ndim == 2:
        return parameters if weight.transposed else parameters.T
    return np.broadcast_to(parameters.reshape(-1, 1), (n, packing.blocks))
