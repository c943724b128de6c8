"""Elementwise operators in the body language: the meaning of each as its entry in `ops` says it, in scalar operations.

`POINTWISE` is indexed by (domain, op type).
"""

from collections.abc import Callable

from onnxfuse import ops
from onnxfuse.codegen.operators.erf_gelu import erf_gelu, one_plus_erf
from onnxfuse.codegen.operators.node import BodyNode, Handler, Handlers
from onnxfuse.codegen.program.builder import Term, as_term
from onnxfuse.ops.registry import Meaning


def _handler(meaning: Meaning) -> Handler:
    return lambda node: (_shorter(node) or as_term(meaning(node)),)


def _shorter(node: BodyNode) -> Term | None:
    """Return a shorter form of this node together with those before it, None if there is none."""
    if node.op_type == ops.Add:
        return _of_pair(node, lambda a, b: one_plus_erf(a, b) or one_plus_erf(b, a))
    return _of_pair(node, erf_gelu) if node.op_type == ops.Mul else None


def _of_pair(node: BodyNode, form: Callable[[Term, Term], Term | None]) -> Term | None:
    """Return a form of two operands of one element type, None if there are others."""
    if len(node.operands) != 2:
        return None
    a, b = node.terms()
    return form(a, b) if a.dtype == b.dtype else None


POINTWISE: Handlers = {key: _handler(entry.meaning) for key, entry in ops.ENTRIES.items() if entry.meaning is not None}
"""Semantics of each elementwise operator, by domain and op type."""
