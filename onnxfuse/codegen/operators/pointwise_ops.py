"""Elementwise operators in the body language: semantics of each in scalar operations.

`POINTWISE` is indexed by (domain, op type).
"""

import math
from collections.abc import Callable
from typing import TypeGuard

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.codegen.operators.node import BodyNode, Handler
from onnxfuse.codegen.operators.reduction_ops import MICROSOFT
from onnxfuse.codegen.program.builder import Term
from onnxfuse.codegen.program.program import Apply, Constant, Value
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError

POINTWISE: dict[tuple[str, str], Handler] = {}
Meaning = Callable[[BodyNode], Term]


def _pointwise(*names: str, domain: str = "") -> Callable[[Meaning], Meaning]:
    def register(meaning: Meaning) -> Meaning:
        POINTWISE.update({(domain, name): lambda node: (meaning(node),) for name in names})
        return meaning

    return register


# --- one scalar operation each -----------------------------------------------------------------------------------

REAL: dict[str, str] = {
    ops.Exp: "exp", ops.Log: "log", ops.Sqrt: "sqrt", ops.Erf: "erf", ops.Sigmoid: "sigmoid", ops.Tanh: "tanh",
    ops.Softplus: "softplus", ops.Mish: "mish", ops.Reciprocal: "reciprocal",
    ops.Sin: "sin", ops.Cos: "cos", ops.Tan: "tan", ops.Asin: "asin", ops.Acos: "acos", ops.Atan: "atan",
    ops.Sinh: "sinh", ops.Cosh: "cosh", ops.Asinh: "asinh", ops.Acosh: "acosh", ops.Atanh: "atanh",
    ops.Floor: "floor", ops.Ceil: "ceil", ops.Round: "round_half_even",
}  # fmt: skip
SIGNED: dict[str, str] = {ops.Neg: "neg", ops.Abs: "abs", ops.Sign: "sign", ops.Relu: "relu"}
BINARY: dict[str, str] = {ops.Add: "add", ops.Sub: "sub", ops.Mul: "mul", ops.Div: "div"}
VARIADIC: dict[str, str] = {ops.Sum: "add", ops.Max: "max", ops.Min: "min", ops.Mean: "add"}
COMPARE: dict[str, str] = {
    ops.Equal: "equal", ops.Less: "less", ops.Greater: "greater",
    ops.LessOrEqual: "less_equal", ops.GreaterOrEqual: "greater_equal",
}  # fmt: skip
LOGIC: dict[str, str] = {ops.And: "and", ops.Or: "or", ops.Xor: "xor"}
BITS: dict[str, str] = {ops.BitwiseAnd: "bit_and", ops.BitwiseOr: "bit_or", ops.BitwiseXor: "bit_xor"}


@_pointwise(*REAL)
def _real(node: BodyNode) -> Term:
    x = node.real(0)
    return x.builder.apply(REAL[node.op_type], x)


@_pointwise(*SIGNED)
def _signed(node: BodyNode) -> Term:
    x = node.term(0)
    if element_types.computed(x.dtype) == "bool":
        raise UnsupportedError(f"{node.op_type} of BOOL")
    return x.builder.apply(SIGNED[node.op_type], x)


@_pointwise(*BINARY)
def _binary(node: BodyNode) -> Term:
    a, b = _same_types(node)
    if element_types.computed(a.dtype) == "bool":
        raise UnsupportedError(f"{node.op_type} of BOOL")
    if node.op_type == ops.Add:
        return _one_plus_erf(a, b) or _one_plus_erf(b, a) or a + b
    if node.op_type == ops.Mul:
        return _erf_gelu(a, b) or a * b
    return a.builder.apply(BINARY[node.op_type], a, b)


def _erf_gelu(a: Term, b: Term) -> Term | None:
    """x * (1 + erf(x * c)) * 0.5 in any order, also with x / c -> one operation: GELU as it was before opset 20."""
    values = a.builder.values

    found, waiting = list[int](), [b.index, a.index]
    while waiting and len(found) <= 3:
        value = values[index := waiting.pop()]
        if _is(value, "mul"):
            waiting.extend(reversed(value.args))
        else:
            found.append(index)
    gate = next((i for i in found if _is(values[i], "one_plus_erf")), None)
    half = next((i for i in found if isinstance(v := values[i], Constant) and v.value == 0.5), None)
    if len(found) != 3 or gate is None or half is None:
        return None
    (x,) = (i for i in found if i not in (gate, half))
    inner, one = values[gate].args  # type: ignore[union-attr]
    scaled = values[inner]
    for op, name in (("mul", "erf_gelu"), ("div", "erf_gelu_over")):
        if _is(scaled, op) and x in scaled.args:
            scale = scaled.args[1 - scaled.args.index(x)]
            known = values[scale]
            if isinstance(known, Constant) and known.value > 0 and (op == "mul" or scaled.args[0] == x):
                # The constants stay operands, as they participate in broadcasting.
                return a.builder.term(Apply(name, (x, scale, one, half), a.dtype))
    return None


def _is(value: Value, op: str) -> TypeGuard[Apply]:
    return isinstance(value, Apply) and value.op == op


def _one_plus_erf(a: Term, b: Term) -> Term | None:
    """1 + erf(x) -> erfc(-x): the form of GELU before opset 20, without cancellation for negative x."""
    erf = a.builder.values[a.index]
    one = b.constant is not None and b.constant.value == 1
    if not (one and isinstance(erf, Apply) and erf.op == "erf"):
        return None
    # The constant stays an operand, as it participates in broadcasting.
    return a.builder.term(Apply("one_plus_erf", (erf.args[0], b.index), a.dtype))


@_pointwise(*VARIADIC)
def _variadic(node: BodyNode) -> Term:
    terms = _same_types(node)
    total = terms[0]
    for term in terms[1:]:
        total = total.builder.apply(VARIADIC[node.op_type], total, term)
    return total / float(len(terms)) if node.op_type == ops.Mean and len(terms) > 1 else total


@_pointwise(*COMPARE)
def _compare(node: BodyNode) -> Term:
    a, b = _same_types(node)
    return a.builder.apply(COMPARE[node.op_type], a, b, dtype=TensorProto.BOOL)


@_pointwise(*LOGIC)
def _logic(node: BodyNode) -> Term:
    a, b = _same_types(node)
    if a.dtype != TensorProto.BOOL:
        raise UnsupportedError(f"{node.op_type} of {element_types.name(a.dtype)}, expected BOOL")
    return a.builder.apply(LOGIC[node.op_type], a, b)


@_pointwise(ops.Not)
def _not(node: BodyNode) -> Term:
    return node.builder.apply("not", node.term(0))


@_pointwise(*BITS)
def _bits(node: BodyNode) -> Term:
    a, b = _same_types(node)
    return a.builder.apply(BITS[node.op_type], _integer(node, a), b)


@_pointwise(ops.BitwiseNot)
def _bitwise_not(node: BodyNode) -> Term:
    return node.builder.apply("bit_not", _integer(node, node.term(0)))


@_pointwise(ops.BitShift)
def _bit_shift(node: BodyNode) -> Term:
    a, b = _same_types(node)
    direction = node.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise UnsupportedError(f"BitShift with direction {direction!r}, expected LEFT or RIGHT")
    return a.builder.apply("shift_left" if direction == "LEFT" else "shift_right", _integer(node, a), b)


@_pointwise(ops.IsNaN)
def _is_nan(node: BodyNode) -> Term:
    return node.builder.apply("is_nan", node.real(0), dtype=TensorProto.BOOL)


@_pointwise(ops.IsInf)
def _is_inf(node: BodyNode) -> Term:
    x = node.real(0)
    wanted = [
        x.builder.apply("equal", x, infinity, dtype=TensorProto.BOOL)
        for attribute, infinity in (("detect_positive", math.inf), ("detect_negative", -math.inf))
        if node.number(attribute, 1)
    ]
    if not wanted:
        raise UnsupportedError("IsInf that detects neither sign")
    return wanted[0] if len(wanted) == 1 else x.builder.apply("or", *wanted)


@_pointwise(ops.Mod)
def _mod(node: BodyNode) -> Term:
    a, b = _same_types(node)
    kind = "real" if element_types.is_real(a.dtype) else "integer"
    return a.builder.apply(f"{'fmod' if node.number('fmod', 0) else 'mod'}_{kind}", a, b)


SPECIAL_POWERS = {2.0: "pow_2", 3.0: "pow_3", 1.0: "pow_1", -1.0: "pow_minus_1"}
SPECIAL_REAL_POWERS = {**SPECIAL_POWERS, 0.5: "pow_half", -0.5: "pow_minus_half"}


@_pointwise(ops.Pow)
def _pow(node: BodyNode) -> Term:
    """The result has the base's type; a base and an exponent of different types compute in float or double."""
    x, y = node.term(0), node.term(1)
    special = SPECIAL_REAL_POWERS if element_types.is_real(x.dtype) else {2.0: "pow_2", 3.0: "pow_3"}
    if y.constant is not None and float(y.constant.value) in special:
        return x.builder.apply(special[float(y.constant.value)], x, y)
    if element_types.is_real(x.dtype):
        return x.builder.apply("pow", x, _converted(y, x.dtype))
    # Exact for results up to 2^53, as in numpy's and ONNX Runtime's float path.
    power = x.builder.apply("pow", _converted(x, TensorProto.DOUBLE), _converted(y, TensorProto.DOUBLE))
    return _converted(power, x.dtype)


@_pointwise(ops.Where)
def _where(node: BodyNode) -> Term:
    condition, a, b = node.term(0), node.term(1), node.term(2)
    if a.dtype != b.dtype:
        raise UnsupportedError(f"Where of {element_types.name(a.dtype)} and {element_types.name(b.dtype)}")
    return a.builder.apply("where", condition, a, b, dtype=a.dtype)


@_pointwise(ops.Identity)
def _identity(node: BodyNode) -> Term:
    return node.term(0)


@_pointwise(ops.Dropout)
def _dropout(node: BodyNode) -> Term:
    training = node.optional(2)
    if training is not None and (training.constant is None or training.constant.value):
        raise UnsupportedError("Dropout in training mode")
    return node.term(0)


@_pointwise(ops.Cast)
def _cast(node: BodyNode) -> Term:
    return _converted(node.term(0), int(node.number("to", 0)))


@_pointwise(ops.CastLike)
def _cast_like(node: BodyNode) -> Term:
    return _converted(node.term(0), node.term(1).dtype)


# --- activations -------------------------------------------------------------------------------------------------


@_pointwise(ops.Clip)
def _clip(node: BodyNode) -> Term:
    x = node.term(0)
    if node.opset < 11:
        low, high = node.number("min", -math.inf), node.number("max", math.inf)
        return x.builder.apply("clip", x, low, high)
    low_term, high_term = node.optional(1), node.optional(2)
    if low_term is not None:
        x = x.builder.apply("at_least", x, low_term)
    return x if high_term is None else x.builder.apply("at_most", x, high_term)


@_pointwise(ops.LeakyRelu)
def _leaky_relu(node: BodyNode) -> Term:
    x = node.real(0)
    return _where_negative(x, x * node.number("alpha", 0.01), x)


@_pointwise(ops.PRelu)
def _prelu(node: BodyNode) -> Term:
    x, slope = _same_types(node)
    positive = x.builder.apply("greater", x, 0.0, dtype=TensorProto.BOOL)
    return x.builder.apply("where", positive, x, x * slope, dtype=x.dtype)


@_pointwise(ops.Elu)
def _elu(node: BodyNode) -> Term:
    x = node.real(0)
    return _where_negative(x, x.builder.apply("expm1", x) * node.number("alpha", 1.0), x)


@_pointwise(ops.Celu)
def _celu(node: BodyNode) -> Term:
    x, alpha = node.real(0), node.number("alpha", 1.0)
    return _where_negative(x, x.builder.apply("expm1", x / alpha) * alpha, x)


@_pointwise(ops.Selu)
def _selu(node: BodyNode) -> Term:
    x = node.real(0)
    alpha, gamma = node.number("alpha", 1.67326319217681884765625), node.number("gamma", 1.05070102214813232421875)
    return _where_negative(x, x.builder.apply("expm1", x) * (alpha * gamma), x * gamma)


@_pointwise(ops.ThresholdedRelu)
def _thresholded_relu(node: BodyNode) -> Term:
    x = node.real(0)
    above = x.builder.apply("greater", x, node.number("alpha", 1.0), dtype=TensorProto.BOOL)
    return x.builder.apply("where", above, x, x.builder.constant(0, x.dtype), dtype=x.dtype)


@_pointwise(ops.HardSigmoid)
def _hard_sigmoid(node: BodyNode) -> Term:
    x = node.real(0)
    return _hard_gate(x, node.number("alpha", 0.2), node.number("beta", 0.5))


@_pointwise(ops.HardSwish)
def _hard_swish(node: BodyNode) -> Term:
    x = node.real(0)
    return x * _hard_gate(x, 1 / 6, 0.5)


@_pointwise(ops.Softsign)
def _softsign(node: BodyNode) -> Term:
    x = node.real(0)
    return x / (x.builder.apply("abs", x) + 1.0)


@_pointwise(ops.Shrink)
def _shrink(node: BodyNode) -> Term:
    x, bias, lambd = node.term(0), node.number("bias", 0.0), node.number("lambd", 0.5)
    b = x.builder
    above = b.apply("greater", x, lambd, dtype=TensorProto.BOOL)
    below = b.apply("less", x, -lambd, dtype=TensorProto.BOOL)
    inner = b.apply("where", above, x - bias, b.constant(0, x.dtype), dtype=x.dtype)
    return b.apply("where", below, x + bias, inner, dtype=x.dtype)


@_pointwise(ops.Gelu)
def _gelu(node: BodyNode) -> Term:
    approximate = node.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise UnsupportedError(f"Gelu with approximate={approximate!r}")
    x = node.real(0)
    return x.builder.apply("gelu" if approximate == "none" else "gelu_tanh", x)


@_pointwise(ops.Swish)
def _swish(node: BodyNode) -> Term:
    x = node.real(0)
    return x * x.builder.apply("sigmoid", x * node.number("alpha", 1.0))


@_pointwise(ops.QuickGelu, domain=MICROSOFT)
def _quick_gelu(node: BodyNode) -> Term:
    x = node.real(0)
    return x * x.builder.apply("sigmoid", x * node.number("alpha", 1.702))


@_pointwise(ops.Gelu, ops.BiasGelu, domain=MICROSOFT)
def _bias_gelu(node: BodyNode) -> Term:
    return node.builder.apply("gelu", _biased(node))


@_pointwise(ops.FastGelu, domain=MICROSOFT)
def _fast_gelu(node: BodyNode) -> Term:
    return node.builder.apply("gelu_tanh", _biased(node))


# --- helpers -----------------------------------------------------------------------------------------------------


def _integer(node: BodyNode, x: Term) -> Term:
    if not element_types.is_integer(x.dtype):
        raise UnsupportedError(f"{node.op_type} of {element_types.name(x.dtype)}, expected integers")
    return x


def _same_types(node: BodyNode) -> tuple[Term, ...]:
    terms = node.terms()
    if len({t.dtype for t in terms}) != 1:
        raise UnsupportedError(f"{node.op_type} of {' and '.join(element_types.name(t.dtype) for t in terms)}")
    return terms


def _converted(x: Term, to: int) -> Term:
    element_types.require(to)
    return x if x.dtype == to else x.builder.apply("cast", x, dtype=to)


def _where_negative(x: Term, then: Term, otherwise: Term) -> Term:
    negative = x.builder.apply("less", x, 0.0, dtype=TensorProto.BOOL)
    return x.builder.apply("where", negative, then, otherwise, dtype=x.dtype)


def _hard_gate(x: Term, alpha: float, beta: float) -> Term:
    return x.builder.apply("clip", x * alpha + beta, 0.0, 1.0)


def _biased(node: BodyNode) -> Term:
    x, bias = node.real(0), node.optional(1)
    return x if bias is None else x + bias
