"""Contractions in the body language: semantics of each matrix product, by (domain, op type)."""

from dataclasses import replace

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.codegen.operators.node import BodyNode, Handlers, handles
from onnxfuse.codegen.program.builder import Term
from onnxfuse.codegen.program.program import Apply, Contraction, Move, Unpacked
from onnxfuse.ops import scalar
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.packing import packing_of

CONTRACTION: Handlers = {}
FLOAT = int(TensorProto.FLOAT)
INT32 = int(TensorProto.INT32)
"""Type of exact sums of products of 8-bit integers."""


def accumulator(dtype: int) -> int:
    """Return the accumulator type for products of this element type."""
    return int(TensorProto.FLOAT) if element_types.computed(dtype) == "float" else dtype


def _product(node: BodyNode, left_axis: int, right_axis: int) -> Term:
    a, b = node.term(0), node.term(1)
    x, w = _as_float8(a), _as_float8(b)
    if x is not None and w is not None and x.dtype == w.dtype:
        return node.builder.term(Contraction((x.index, w.index), (left_axis, right_axis), 1, FLOAT, FLOAT))
    if a.dtype != b.dtype:
        raise UnsupportedError(f"products of {' and '.join(sorted(element_types.name(t.dtype) for t in (a, b)))}")
    contract = Contraction((a.index, b.index), (left_axis, right_axis), 1, accumulator(a.dtype), a.dtype)
    return node.builder.term(contract)


@handles(CONTRACTION, ops.MatMul)
def _matmul(node: BodyNode) -> tuple[Term, ...]:
    return (_product(node, -1, -2),)


@handles(CONTRACTION, ops.Gemm)
def _gemm(node: BodyNode) -> tuple[Term, ...]:
    """The product, then alpha, beta and the bias: in float32, rounded once."""
    product = _product(node, -2 if node.number("transA", 0) else -1, -1 if node.number("transB", 0) else -2)
    alpha, beta, bias = node.number("alpha", 1.0), node.number("beta", 1.0), node.optional(2)
    if alpha == 1.0 and bias is None:
        return (product,)
    value = _scaled(product, alpha)
    if bias is not None and beta != 0.0:
        value = value + _scaled(bias, beta)
    return (value.cast(product.dtype),)


@handles(CONTRACTION, ops.MatMulNBits)
def _matmul_few_bits(node: BodyNode) -> tuple[Term, ...]:
    """The product by a weight in few bits; its bias is added in float32."""
    packing = packing_of(node.number)
    if packing.reason is not None:
        raise node.refusal(f"with {packing.reason}")
    if node.optional(4) is not None:
        raise node.refusal("with an order of its terms of its own (g_idx)")
    if node.number("weight_prepacked", 0):
        raise node.refusal("with a weight that is reordered for one GPU (weight_prepacked)")
    a, packed, scales, zeros, bias = node.real(0), node.term(1), node.real(2), node.optional(3), node.optional(5)
    if a.dtype != scales.dtype or packed.dtype != TensorProto.UINT8:
        raise node.refusal(f"of {' and '.join(element_types.name(t.dtype) for t in (a, packed, scales))}")
    zeros_packed = zeros is not None and zeros.dtype == TensorProto.UINT8
    read = (packed, scales) if zeros is None else (packed, scales, zeros)
    weight = node.builder.term(Unpacked(tuple(t.index for t in read), packing, zeros_packed, a.dtype))
    product = node.builder.term(Contraction((a.index, weight.index), (-1, -1), 1, accumulator(a.dtype), a.dtype))
    return (product if bias is None else product + bias,)


@handles(CONTRACTION, ops.MatMulInteger)
def _matmul_integer(node: BodyNode) -> tuple[Term, ...]:
    """The product in int32, exact; zero points other than 0 are subtracted by nodes of their own."""
    a, b = integer_factors(node)
    return (node.builder.term(Contraction((a.index, b.index), (-1, -2), 1, INT32, INT32)),)


def integer_factors(node: BodyNode) -> tuple[Term, Term]:
    """Return the factors of a product or a convolution of integers without zero points."""
    for position in (2, 3):
        if node.optional(position) is not None and node.constant(position).any():
            raise node.refusal("with a zero point other than 0")
    return node.term(0), node.term(1)


def _as_float8(x: Term) -> Term | None:
    """Return the float8 numbers that `x` has as float32, moved like it: a scale of 1 changes none of them."""
    value = x.builder.values[x.index]
    if isinstance(value, Move) and len(value.args) == 1:
        own = _as_float8(Term(x.builder, value.args[0]))
        return None if own is None else x.builder.term(replace(value, args=(own.index,), dtype=own.dtype))
    if isinstance(value, Apply) and value.op == scalar.mul and Term(x.builder, value.args[1]).literal == 1.0:
        value = x.builder.values[value.args[0]]
    if not isinstance(value, Apply) or value.op != scalar.cast or x.dtype != FLOAT:
        return None
    read = Term(x.builder, value.args[0])
    return read if read.dtype == TensorProto.FLOAT8E4M3FN else None


def _scaled(x: Term, factor: float) -> Term:
    wide = x.cast(TensorProto.FLOAT)
    return wide if factor == 1.0 else wide * factor
