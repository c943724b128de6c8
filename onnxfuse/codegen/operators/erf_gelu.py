"""GELU as it was before opset 20, from its parts: one operation, without the cancellation of 1 + erf left of 0."""

from typing import TypeGuard

from onnxfuse.codegen.program.builder import Term
from onnxfuse.codegen.program.program import Apply, Constant, Value
from onnxfuse.ops import scalar
from onnxfuse.ops.scalar import Function

PRODUCT = Function("erf_gelu", lambda x, scale, *_: x * scalar.one_plus_erf(x * scale) * 0.5, half=True)
"""x * (1 + erf(x * scale)) * 0.5, of x and the scale."""
QUOTIENT = Function("erf_gelu_over", lambda x, scale, *_: x * scalar.one_plus_erf(x / scale) * 0.5, half=True)
"""x * (1 + erf(x / scale)) * 0.5, of x and the scale."""


def erf_gelu(a: Term, b: Term) -> Term | None:
    """Return the product of `a` and `b` if it is x * (1 + erf(x * c)) * 0.5 in any order, also with x / c."""
    values = a.builder.values

    factors, waiting = list[int](), [b.index, a.index]
    while waiting and len(factors) <= 3:
        value = values[index := waiting.pop()]
        if _is(value, scalar.mul):
            waiting.extend(reversed(value.args))
        else:
            factors.append(index)
    gate = next((i for i in factors if _is(values[i], scalar.one_plus_erf)), None)
    half = next((i for i in factors if isinstance(v := values[i], Constant) and v.value == 0.5), None)
    if len(factors) != 3 or gate is None or half is None:
        return None
    (x,) = (i for i in factors if i not in (gate, half))
    inner, one = values[gate].args  # type: ignore[union-attr]  # `_is` has found an Apply
    scaled = values[inner]
    for op, function in ((scalar.mul, PRODUCT), (scalar.div, QUOTIENT)):
        if _is(scaled, op) and x in scaled.args:
            scale = scaled.args[1 - scaled.args.index(x)]
            factor = values[scale]
            if isinstance(factor, Constant) and factor.value > 0 and (op == scalar.mul or scaled.args[0] == x):
                # The constants stay operands, as they participate in broadcasting.
                return a.builder.term(Apply(function, (x, scale, one, half), a.dtype))
    return None


def _is(value: Value, op: Function) -> TypeGuard[Apply]:
    return isinstance(value, Apply) and value.op == op


def one_plus_erf(a: Term, b: Term) -> Term | None:
    """Return the sum of `a` and `b` if it is erf(x) + 1: erfc(-x)."""
    erf = a.builder.values[a.index]
    one = b.constant is not None and b.constant.value == 1
    if not (one and isinstance(erf, Apply) and erf.op == scalar.erf):
        return None
    # The constant stays an operand, as it participates in broadcasting.
    return a.builder.term(Apply(scalar.one_plus_erf, (erf.args[0], b.index), a.dtype))
