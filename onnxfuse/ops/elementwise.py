"""Elementwise operators: arithmetic, activations, comparisons, logic, casts."""

import math
from functools import reduce

from onnx import TensorProto

from onnxfuse.ops import flops, scalar
from onnxfuse.ops.families import binary, broadcasting, pointwise, unary, variadic
from onnxfuse.ops.inputs import CONDITION, DATA, Fraction, Offset, data
from onnxfuse.ops.registry import Operator, Trait
from onnxfuse.ops.scalar import NUMBERS, Function, Kind, Scalar, ScalarNode
from onnxfuse.ops.shapes.alike import sloped

__all__ = [
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitCast", "BitShift", "BitwiseAnd",
    "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div",
    "Dropout", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish",
    "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg",
    "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "SwiGLU", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
]  # fmt: skip

# ---- scalar functions
Sigmoid = unary("Sigmoid", scalar.sigmoid, Trait.FINITE_FROM_ZERO, flops=4)
Tanh = unary("Tanh", scalar.tanh, Trait.FINITE_FROM_ZERO)
Softplus = unary("Softplus", scalar.softplus, Trait.FINITE_FROM_ZERO, flops=3)
Erf = unary("Erf", scalar.erf, Trait.FINITE_FROM_ZERO)
Sqrt = unary("Sqrt", scalar.sqrt, Trait.FOLDABLE)
Exp = unary("Exp", scalar.exp, Trait.FOLDABLE)
Log = unary("Log", scalar.log)
Reciprocal = unary("Reciprocal", scalar.reciprocal, Trait.FOLDABLE)
Sin = unary("Sin", scalar.sin, Trait.FINITE_FROM_ZERO)
Cos = unary("Cos", scalar.cos)
Tan = unary("Tan", scalar.tan, Trait.FINITE_FROM_ZERO)
Asin = unary("Asin", scalar.asin, Trait.FINITE_FROM_ZERO)
Acos = unary("Acos", scalar.acos)
Atan = unary("Atan", scalar.atan, Trait.FINITE_FROM_ZERO, Trait.HALF_ON_CPU)
Sinh = unary("Sinh", scalar.sinh, Trait.FINITE_FROM_ZERO)
Cosh = unary("Cosh", scalar.cosh)
Asinh = unary("Asinh", scalar.asinh, Trait.FINITE_FROM_ZERO)
Acosh = unary("Acosh", scalar.acosh)
Atanh = unary("Atanh", scalar.atanh, Trait.FINITE_FROM_ZERO)
Floor = unary("Floor", scalar.floor, Trait.FINITE_FROM_ZERO, Trait.FOLDABLE)
Ceil = unary("Ceil", scalar.ceil, Trait.FINITE_FROM_ZERO, Trait.FOLDABLE)
Round = unary("Round", scalar.round_half_even, Trait.FINITE_FROM_ZERO)

Relu = pointwise("Relu", lambda node: scalar.relu(node.term(0, *NUMBERS)), Trait.FINITE_FROM_ZERO, Trait.FOLDABLE)
Abs = pointwise(
    "Abs",
    lambda node: scalar.absolute(node.term(0, *NUMBERS)),
    Trait.NONZERO,
    Trait.INTEGRAL,
    Trait.FINITE_FROM_ZERO,
    Trait.FOLDABLE,
)
Neg = pointwise(
    "Neg",
    lambda node: scalar.neg(node.term(0, *NUMBERS)),
    Trait.NONZERO,
    Trait.INTEGRAL,
    Trait.FINITE_FROM_ZERO,
    Trait.FOLDABLE,
)
Sign = pointwise("Sign", lambda node: scalar.sign(node.term(0, *NUMBERS)), Trait.FINITE_FROM_ZERO)

# ---- activations

Mish = unary(
    "Mish", Function("mish", lambda x: x * scalar.tanh(scalar.softplus(x)), half=True), Trait.FINITE_FROM_ZERO, flops=5
)


def _clip(node: ScalarNode) -> Scalar:
    """The bounds were attributes before opset 11."""
    x = node.term(0)
    if node.opset < 11:
        return scalar.clip(x, node.number("min", -math.inf), node.number("max", math.inf))
    low, high = node.optional(1), node.optional(2)
    if low is not None:
        x = scalar.at_least(x, low)
    return x if high is None else scalar.at_most(x, high)


def _leaky_relu(node: ScalarNode) -> Scalar:
    x = node.real(0)
    return _where_negative(x, x * node.number("alpha", 0.01), x)


def _elu(node: ScalarNode) -> Scalar:
    x = node.real(0)
    return _where_negative(x, scalar.expm1(x) * node.number("alpha", 1.0), x)


def _celu(node: ScalarNode) -> Scalar:
    x, alpha = node.real(0), node.number("alpha", 1.0)
    return _where_negative(x, scalar.expm1(x / alpha) * alpha, x)


def _selu(node: ScalarNode) -> Scalar:
    x = node.real(0)
    alpha, gamma = node.number("alpha", 1.67326319217681884765625), node.number("gamma", 1.05070102214813232421875)
    return _where_negative(x, scalar.expm1(x) * (alpha * gamma), x * gamma)


def _where_negative(x: Scalar, then: Scalar, otherwise: Scalar) -> Scalar:
    return scalar.where(scalar.less(x, 0.0), then, otherwise)


def _thresholded_relu(node: ScalarNode) -> Scalar:
    x = node.real(0)
    above = scalar.greater(x, node.number("alpha", 1.0))
    return scalar.where(above, x, x.number(0))


def _shrink(node: ScalarNode) -> Scalar:
    x, bias, threshold = node.term(0), node.number("bias", 0.0), node.number("lambd", 0.5)
    above, below = scalar.greater(x, threshold), scalar.less(x, -threshold)
    inner = scalar.where(above, x - bias, x.number(0))
    return scalar.where(below, x + bias, inner)


def _hard_sigmoid(node: ScalarNode) -> Scalar:
    x = node.real(0)
    return _hard_gate(x, node.number("alpha", 0.2), node.number("beta", 0.5))


def _hard_swish(node: ScalarNode) -> Scalar:
    x = node.real(0)
    return x * _hard_gate(x, 1 / 6, 0.5)


def _hard_gate(x: Scalar, alpha: float, beta: float) -> Scalar:
    return scalar.clip(x * alpha + beta, 0.0, 1.0)


def _softsign(node: ScalarNode) -> Scalar:
    x = node.real(0)
    return x / (scalar.absolute(x) + 1.0)


def _gelu(node: ScalarNode) -> Scalar:
    approximate = node.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise node.refusal(f"with approximate={approximate!r}")
    x = node.real(0)
    return scalar.gelu(x) if approximate == "none" else scalar.gelu_tanh(x)


def _swish(node: ScalarNode) -> Scalar:
    x = node.real(0)
    return x * scalar.sigmoid(x * node.number("alpha", 1.0))


def _prelu(node: ScalarNode) -> Scalar:
    x, slope = node.alike(count=2)
    positive = scalar.greater(x, 0.0)
    return scalar.where(positive, x, x * slope)


LeakyRelu = pointwise("LeakyRelu", _leaky_relu, Trait.FINITE_FROM_ZERO, flops=2)
Clip = pointwise(
    "Clip",
    _clip,
    Trait.FINITE_FROM_ZERO,
    Trait.FOLDABLE,
    flops=2,
    inputs=data("input", "min", "max"),
    moved={"min": 11, "max": 11},
)
Elu = pointwise("Elu", _elu, Trait.FINITE_FROM_ZERO, flops=3)
Celu = pointwise("Celu", _celu, Trait.FINITE_FROM_ZERO, flops=4)
Selu = pointwise("Selu", _selu, Trait.FINITE_FROM_ZERO, flops=4)
ThresholdedRelu = pointwise("ThresholdedRelu", _thresholded_relu, Trait.FINITE_FROM_ZERO)
Shrink = pointwise("Shrink", _shrink, Trait.FINITE_FROM_ZERO)
HardSigmoid = pointwise("HardSigmoid", _hard_sigmoid, Trait.FINITE_FROM_ZERO, flops=4)
HardSwish = pointwise("HardSwish", _hard_swish, Trait.FINITE_FROM_ZERO, flops=5)
Softsign = pointwise("Softsign", _softsign, Trait.FINITE_FROM_ZERO, flops=3)
Gelu = pointwise("Gelu", _gelu, Trait.FINITE_FROM_ZERO, flops=5)
Swish = pointwise("Swish", _swish, Trait.FINITE_FROM_ZERO, flops=5)
PRelu = Operator("PRelu", meaning=_prelu, flops=flops.per_output(2), alike=sloped)

# ---- arithmetic


def _combined(function: Function, terms: tuple[Scalar, ...]) -> Scalar:
    return reduce(lambda total, term: function(total, term), terms)


def _mean(node: ScalarNode) -> Scalar:
    terms = node.alike()
    total = _combined(scalar.add, terms)
    return total / float(len(terms)) if len(terms) > 1 else total


def _mod(node: ScalarNode) -> Scalar:
    a, b = node.alike(count=2)
    if node.number("fmod", 0):
        return scalar.fmod_real(a, b) if a.is_real else scalar.fmod_integer(a, b)
    return scalar.mod_real(a, b) if a.is_real else scalar.mod_integer(a, b)


def _pow(node: ScalarNode) -> Scalar:
    """The result has the base's type; a base and an exponent of different types compute in float or double."""
    x, y = node.term(0), node.term(1)
    special = scalar.REAL_POWERS if x.is_real else scalar.POWERS
    if y.literal is not None and float(y.literal) in special:
        return special[float(y.literal)](x, y)
    if x.is_real:
        return scalar.power(x, y.cast(x.dtype))
    # Exact for results up to 2^53, as in numpy's and ONNX Runtime's float path.
    return scalar.power(x.cast(TensorProto.DOUBLE), y.cast(TensorProto.DOUBLE)).cast(x.dtype)


Add = binary("Add", scalar.add, Trait.ARITHMETIC, Trait.FOLDABLE, kinds=NUMBERS)
Sub = binary("Sub", scalar.sub, Trait.ARITHMETIC, Trait.FOLDABLE, kinds=NUMBERS)
Mul = binary("Mul", scalar.mul, Trait.ARITHMETIC, Trait.NONZERO, Trait.FOLDABLE, kinds=NUMBERS)
Div = binary("Div", scalar.div, Trait.ARITHMETIC, Trait.FOLDABLE, kinds=NUMBERS)
Pow = broadcasting("Pow", _pow, Trait.FOLDABLE)
Mod = broadcasting("Mod", _mod, Trait.INTEGRAL, Trait.FOLDABLE)


Sum = variadic("Sum", lambda node: _combined(scalar.add, node.alike()), Trait.IDENTITY_OF_ONE)
Max = variadic(
    "Max",
    lambda node: _combined(scalar.maximum, node.alike()),
    Trait.FOLDABLE,
    Trait.CARRIES,
    Trait.IDENTITY_OF_ONE,
)
Min = variadic(
    "Min",
    lambda node: _combined(scalar.minimum, node.alike()),
    Trait.FOLDABLE,
    Trait.CARRIES,
    Trait.IDENTITY_OF_ONE,
)
Mean = variadic("Mean", _mean, Trait.IDENTITY_OF_ONE, flops=2)

# ---- comparisons and logic

Equal = binary("Equal", scalar.equal, Trait.COMPARISON, Trait.FOLDABLE, flops=0, mirrored="Equal")
Greater = binary("Greater", scalar.greater, Trait.COMPARISON, Trait.FOLDABLE, flops=0, mirrored="Less")
GreaterOrEqual = binary(
    "GreaterOrEqual", scalar.greater_equal, Trait.COMPARISON, Trait.FOLDABLE, flops=0, mirrored="LessOrEqual"
)
Less = binary("Less", scalar.less, Trait.COMPARISON, Trait.FOLDABLE, flops=0, mirrored="Greater")
LessOrEqual = binary(
    "LessOrEqual", scalar.less_equal, Trait.COMPARISON, Trait.FOLDABLE, flops=0, mirrored="GreaterOrEqual"
)
And = binary("And", scalar.logical_and, Trait.FOLDABLE, kinds=(Kind.BOOLEAN,), flops=0)
Or = binary("Or", scalar.logical_or, Trait.FOLDABLE, kinds=(Kind.BOOLEAN,), flops=0)
Xor = binary("Xor", scalar.logical_xor, kinds=(Kind.BOOLEAN,), flops=0)
Not = pointwise("Not", lambda node: scalar.logical_not(node.term(0)), Trait.FOLDABLE, flops=0, inputs={"X": CONDITION})
BitwiseAnd = binary("BitwiseAnd", scalar.bit_and, kinds=(Kind.INTEGER,))
BitwiseOr = binary("BitwiseOr", scalar.bit_or, kinds=(Kind.INTEGER,))
BitwiseXor = binary("BitwiseXor", scalar.bit_xor, kinds=(Kind.INTEGER,))
BitwiseNot = pointwise("BitwiseNot", lambda node: scalar.bit_not(node.term(0, Kind.INTEGER)), inputs=data("X"))


def _bit_shift(node: ScalarNode) -> Scalar:
    a, b = node.alike(Kind.INTEGER, count=2)
    direction = node.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise node.refusal(f"with direction {direction!r}, expected LEFT or RIGHT")
    return scalar.shift_left(a, b) if direction == "LEFT" else scalar.shift_right(a, b)


def _is_inf(node: ScalarNode) -> Scalar:
    x = node.real(0)
    wanted = [
        scalar.equal(x, infinity)
        for attribute, infinity in (("detect_positive", math.inf), ("detect_negative", -math.inf))
        if node.number(attribute, 1)
    ]
    if not wanted:
        raise node.refusal("that detects neither sign")
    return wanted[0] if len(wanted) == 1 else scalar.logical_or(*wanted)


def _where(node: ScalarNode) -> Scalar:
    return scalar.where(node.term(0), *node.alike(first=1, count=2))


BitShift = broadcasting("BitShift", _bit_shift, inputs={"X": DATA, "Y": Offset(0, 7)})
IsNaN = pointwise("IsNaN", lambda node: scalar.is_nan(node.real(0)), flops=0)
IsInf = pointwise("IsInf", _is_inf, flops=0)
Where = broadcasting(
    "Where", _where, Trait.FOLDABLE, Trait.CARRIES, flops=0, inputs={"condition": CONDITION, "X": DATA, "Y": DATA}
)

# ---- the same number, perhaps of another type


def _cast(node: ScalarNode) -> Scalar:
    if not node.number("saturate", 1):
        raise node.refusal("that does not saturate")
    return node.term(0).cast(int(node.number("to", 0)))


def _cast_like(node: ScalarNode) -> Scalar:
    if not node.number("saturate", 1):
        raise node.refusal("that does not saturate")
    return node.term(0).cast(node.term(1).dtype)


def _dropout(node: ScalarNode) -> Scalar:
    training = node.optional(2)
    if training is not None and (training.literal is None or training.literal):
        raise node.refusal("in training mode")
    return node.term(0)


Cast = pointwise("Cast", _cast, Trait.FOLDABLE, Trait.CASTS, Trait.FINITE_FROM_ZERO, flops=0)
CastLike = pointwise("CastLike", _cast_like, Trait.CASTS, flops=0)
Dropout = pointwise(
    "Dropout",
    _dropout,
    flops=0,
    inputs={"data": DATA, "ratio": Fraction(0, 0), "training_mode": CONDITION},
    moved={"ratio": 12},
)

BitCast = Operator("BitCast")
SwiGLU = Operator("SwiGLU")
