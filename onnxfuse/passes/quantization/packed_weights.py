"""Write products by weights in few bits in one form, MatMulNBits of ONNX Runtime, whatever tool wrote them.

Tools write DequantizeLinear of int4, uint4, int8 or uint8 weights, with a scale for each block, each column or all, and
then MatMul or Gemm. MatMulNBits has a kernel in ONNX Runtime, and holds any of these: numbers without a sign, a scale
and a zero point for each block of terms of a column. A column's one scale is that of each of its blocks.

Products of quantized activations sum integers, or their weights are dequantized once: these are none of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.ops.registry import MICROSOFT, Trait
from onnxfuse.passes.quantization.weights import FLOATS, dequantizing
from onnxfuse.symbolic.packing import Packing

SIGNED: Mapping[int, int] = {TensorProto.INT4: 4, TensorProto.INT8: 8}
BITS: Mapping[int, int] = {**SIGNED, TensorProto.UINT4: 4, TensorProto.UINT8: 8}
"""Bits of the element types that become numbers without a sign."""
MOST_BLOCK = 128
"""Terms of a block where a column has one scale: one of the sizes for which ONNX Runtime has kernels."""


@dataclass(frozen=True)
class _Weight:
    """A dequantized constant as a right factor."""

    node: Node
    """The DequantizeLinear."""
    transposed: bool
    """Whether it lies [n, k] as the DequantizeLinear reads it."""


_Packed = tuple[Packing, tuple[str, ...]]
"""The packing of a weight, and the names of its constants."""


@graph_pass
def pack_weights(graph: Graph) -> bool:
    """Writes products by dequantized weights of 4 or 8 bits as MatMulNBits, and its scales in one shape."""
    changed, packed = False, dict[tuple[str, bool], _Packed | None]()
    for node in list(graph.nodes):
        if node.domain == MICROSOFT and node.op == ops.MatMulNBits:
            changed |= _reshape_parameters(graph, node)
        elif not node.domain and node.has(Trait.MATRIX_PRODUCT):
            changed |= _pack(graph, node, packed)
    if changed:
        graph.eliminate_dead_code()
    return changed


# ---- MatMulNBits


def _reshape_parameters(graph: Graph, node: Node) -> bool:
    """Give scales and zero points a row for each column; earlier files have them in one line."""
    columns, read = graph.attributes(node).get("N", 0), dict[int, str]()
    assert isinstance(columns, int)
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


def _pack(graph: Graph, node: Node, packed: dict[tuple[str, bool], _Packed | None]) -> bool:
    weight = _weight(graph, node)
    if weight is None or graph.type(node.inputs[0]).dtype not in FLOATS or (graph.type(node.inputs[0]).rank or 0) < 2:
        return False
    key = (weight.node.outputs[0], weight.transposed)
    if key not in packed:
        packed[key] = _packed(graph, weight, graph.type(node.inputs[0]).dtype)
    found = packed[key]
    if found is None:
        return False
    packing, names = found
    columns = graph.type(names[0]).static_shape
    assert columns is not None
    to = Rewriter(graph, node)
    product = to.add(
        ops.MatMulNBits, node.inputs[0], *names, domain=MICROSOFT, type_=graph.type(node.outputs[0]), name=node.name,
        K=packing.terms, N=columns[0], bits=packing.bits, block_size=packing.block,
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
    value, transposed = node.inputs[1], bool(node.op == ops.Gemm and known.get("transB"))
    maker = graph.producer(value)
    if maker is not None and maker.op == ops.Transpose and not maker.domain:
        value, transposed = maker.inputs[0], not transposed
    nodes = dequantizing(graph, value)
    if not nodes or dequantizing(graph, node.inputs[0]):
        return None
    stored = graph.type(nodes[0].inputs[0])
    constant = all(map(graph.is_constant, filter(None, nodes[0].inputs)))
    return _Weight(nodes[0], transposed) if constant and stored.dtype in BITS and stored.rank == 2 else None


def _packed(graph: Graph, weight: _Weight, dtype: int) -> _Packed | None:
    """Add the constants of a weight in the form of MatMulNBits, for products of this element type, and return its
    packing and their names: numbers, scales, and zero points if they are not the middle of the numbers. None if it has
    no such form."""
    node = weight.node
    value, scale, *zero = (graph.constant(v) for v in node.inputs if v)
    stored = graph.type(node.inputs[0]).dtype
    if value is None or value.size == 0 or scale is None or (zero and zero[0] is None):
        return None
    element = helper.tensor_dtype_to_np_dtype(dtype)
    zeros_of = [z for z in zero if z is not None] or [np.zeros(1, np.int8)]  # it is 0 where there is none
    bits, offset = _bits_and_offset(stored, value, *zeros_of)
    packing = _packing(weight, value.shape, scale, bits)
    if packing is None or not np.array_equal(scale.astype(element).astype(scale.dtype), scale):
        return None
    numbers = value.astype(np.int16) + offset
    numbers = numbers if weight.transposed else numbers.T
    scales = _of_blocks(weight, scale, len(numbers), packing)
    zeros = np.full_like(scales, offset, np.int16)
    for of_blocks in zero:
        assert of_blocks is not None
        zeros = _of_blocks(weight, of_blocks, len(numbers), packing).astype(np.int16) + offset
    arrays = {f"{node.inputs[0]}.packed": packing.pack(numbers), f"{node.inputs[1]}.blocks": scales.astype(element)}
    if (zeros != packing.middle).any():
        arrays[f"{node.inputs[0]}.zero_points"] = packing.pack_zero_points(zeros)
    return packing, tuple(_added(graph, hint, array) for hint, array in arrays.items())


def _bits_and_offset(stored: int, *arrays: np.ndarray) -> tuple[int, int]:
    """Return the bits of a weight's numbers and zero points without a sign, and what is added for that.

    Tools store numbers of 4 bits in bytes, too.
    """
    bits = BITS[stored]
    usual = {n: 1 << n - 1 if stored in SIGNED else 0 for n in (4, bits)}
    ends = [int(end) for array in arrays for end in (array.min(), array.max())]
    low, high = min(ends), max(ends)
    fitting = (offset for offset in (usual[4], -low) if low + offset >= 0 and high + offset < 1 << 4)
    offset = next(fitting, None)
    return (bits, usual[bits]) if offset is None else (4, offset)


def _added(graph: Graph, hint: str, array: np.ndarray) -> str:
    name = graph.fresh(hint)
    graph.add_constant(name, np.ascontiguousarray(array))
    return name


def _packing(weight: _Weight, shape: tuple[int, ...], scale: np.ndarray, bits: int) -> Packing | None:
    """Return the packing by the terms that share a scale, or, of a column with one scale, by some of them."""
    along = 1 if weight.transposed else 0
    terms, axis, block = shape[along], weight.node.written.get("axis", 1), weight.node.written.get("block_size", 0)
    assert isinstance(block, int)
    if scale.ndim < 2:
        if scale.size > 1 and axis != 1 - along:
            return None
        block = min(terms & -terms, MOST_BLOCK)
    elif axis != along:
        return None
    packing = Packing(bits, block, terms)
    return packing if packing.reason is None else None


def _of_blocks(weight: _Weight, parameters: np.ndarray, n: int, packing: Packing) -> np.ndarray:
    """Return scales or zero points as one for each block of a column, [n, blocks]."""
    if parameters.ndim == 2:
        return parameters if weight.transposed else parameters.T
    return np.broadcast_to(parameters.reshape(-1, 1), (n, packing.blocks))
