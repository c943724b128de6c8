"""Attention operators in the body language: semantics by (domain, op type)."""

from onnxfuse import ops
from onnxfuse.codegen.operators.node import BodyNode, Handlers, handles
from onnxfuse.codegen.program.builder import Term
from onnxfuse.codegen.program.program import Attend
from onnxfuse.symbolic.element_types import UnsupportedError

ATTENTION: Handlers = {}

_KNOWN = {"num_heads", "scale", "unidirectional"}


@handles(ATTENTION, ops.MultiHeadAttention)
def _multi_head_attention(node: BodyNode) -> tuple[Term, ...]:
    operands = [*node.operands, *[None] * 6]
    if any(operands[i] is not None for i in (3, 4)) or any(g is not None for g in operands[6:]):
        raise UnsupportedError("MultiHeadAttention with more than queries, keys, values and a bias")
    if unknown := set(node.attributes) - _KNOWN:
        raise UnsupportedError(f"MultiHeadAttention with {min(unknown)}")
    q, k, v = (node.term(i) for i in range(3))
    bias = node.optional(5)
    args = tuple(t.index for t in (q, k, v, bias) if t is not None)
    heads, causal = int(node.number("num_heads", 0)), bool(node.number("unidirectional", 0))
    if heads < 1:
        raise UnsupportedError(f"MultiHeadAttention of {heads} heads")
    return (node.builder.term(Attend(args, heads, node.number("scale", 0.0), causal, q.dtype)),)
