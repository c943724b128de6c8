"""Contractions in the body language: semantics of each matrix product, by (domain, op type)."""

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.codegen.operators.node import BodyNode, Handler
from onnxfuse.codegen.program.builder import Term
from onnxfuse.codegen.program.program import Contraction
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError


def accumulator(dtype: int) -> int:
    """Return the accumulator type for products of this element type."""
    return int(TensorProto.FLOAT) if element_types.computed(dtype) == "float" else dtype


def _product(node: BodyNode, left_axis: int, right_axis: int) -> Term:
    a, b = node.term(0), node.term(1)
    if a.dtype != b.dtype:
        raise UnsupportedError(f"products of {' and '.join(sorted(element_types.name(t.dtype) for t in (a, b)))}")
    contract = Contraction((a.index, b.index), (left_axis, right_axis), 1, accumulator(a.dtype), a.dtype)
    return node.builder.term(contract)


def _matmul(node: BodyNode) -> tuple[Term, ...]:
    return (_product(node, -1, -2),)


def _gemm(node: BodyNode) -> tuple[Term, ...]:
    """The product, then alpha, beta and the bias: in float32, rounded once."""
    product = _product(node, -2 if node.number("transA", 0) else -1, -1 if node.number("transB", 0) else -2)
    alpha, beta, bias = node.number("alpha", 1.0), node.number("beta", 1.0), node.optional(2)
    if alpha == 1.0 and bias is None:
        return (product,)
    value = _scaled(product, alpha)
    if bias is not None and beta != 0.0:
        value = value + _scaled(bias, beta)
    return (_cast(value, product.dtype),)


def _scaled(x: Term, factor: float) -> Term:
    wide = _cast(x, TensorProto.FLOAT)
    return wide if factor == 1.0 else wide * factor


def _cast(x: Term, to: int) -> Term:
    return x if x.dtype == to else x.builder.apply("cast", x, dtype=to)


CONTRACTION: dict[tuple[str, str], Handler] = {("", ops.MatMul): _matmul, ("", ops.Gemm): _gemm}
