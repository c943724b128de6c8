"""Elementwise operators: arithmetic, activations, comparisons, logic, casts."""

from onnxfuse.ops.inputs import CONDITION, DATA, Fraction, Offset, data
from onnxfuse.ops.registry import Operator, Trait

Relu = Operator("Relu", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
LeakyRelu = Operator("LeakyRelu", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Sigmoid = Operator("Sigmoid", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
HardSigmoid = Operator("HardSigmoid", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
HardSwish = Operator("HardSwish", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Tanh = Operator("Tanh", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Clip = Operator(
    "Clip", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO, inputs=data("input", "min", "max"), moved={"min": 11, "max": 11}
)
Elu = Operator("Elu", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Selu = Operator("Selu", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Celu = Operator("Celu", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Softplus = Operator("Softplus", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Softsign = Operator("Softsign", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Gelu = Operator("Gelu", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Mish = Operator("Mish", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Swish = Operator("Swish", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Erf = Operator("Erf", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Abs = Operator("Abs", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Neg = Operator("Neg", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
ThresholdedRelu = Operator("ThresholdedRelu", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)
Shrink = Operator("Shrink", Trait.KEEPS_SHAPE, Trait.FINITE_FROM_ZERO)

Sqrt = Operator("Sqrt", Trait.KEEPS_SHAPE)
Exp = Operator("Exp", Trait.KEEPS_SHAPE)
Log = Operator("Log", Trait.KEEPS_SHAPE)
Reciprocal = Operator("Reciprocal", Trait.KEEPS_SHAPE)
Sin = Operator("Sin", Trait.KEEPS_SHAPE)
Cos = Operator("Cos", Trait.KEEPS_SHAPE)
Tan = Operator("Tan", Trait.KEEPS_SHAPE)
Asin = Operator("Asin", Trait.KEEPS_SHAPE)
Acos = Operator("Acos", Trait.KEEPS_SHAPE)
Atan = Operator("Atan", Trait.KEEPS_SHAPE, Trait.HALF_ON_CPU)
Sinh = Operator("Sinh", Trait.KEEPS_SHAPE)
Cosh = Operator("Cosh", Trait.KEEPS_SHAPE)
Asinh = Operator("Asinh", Trait.KEEPS_SHAPE)
Acosh = Operator("Acosh", Trait.KEEPS_SHAPE)
Atanh = Operator("Atanh", Trait.KEEPS_SHAPE)
Floor = Operator("Floor", Trait.KEEPS_SHAPE)
Ceil = Operator("Ceil", Trait.KEEPS_SHAPE)
Round = Operator("Round", Trait.KEEPS_SHAPE)
Sign = Operator("Sign", Trait.KEEPS_SHAPE)
Not = Operator("Not", Trait.KEEPS_SHAPE, inputs={"X": CONDITION})
BitwiseNot = Operator("BitwiseNot", Trait.KEEPS_SHAPE, inputs=data("X"))
IsNaN = Operator("IsNaN", Trait.KEEPS_SHAPE)
IsInf = Operator("IsInf", Trait.KEEPS_SHAPE)
Cast = Operator("Cast", Trait.KEEPS_SHAPE, Trait.CASTS)
CastLike = Operator("CastLike", Trait.KEEPS_SHAPE, Trait.CASTS)
Dropout = Operator(
    "Dropout",
    Trait.KEEPS_SHAPE,
    inputs={"data": DATA, "ratio": Fraction(0, 0), "training_mode": CONDITION},
    moved={"ratio": 12},
)

Add = Operator("Add", Trait.BROADCASTS, Trait.COMMUTATIVE)
Mul = Operator("Mul", Trait.BROADCASTS, Trait.COMMUTATIVE)
And = Operator("And", Trait.BROADCASTS, Trait.COMMUTATIVE, inputs={"A": CONDITION, "B": CONDITION})
Or = Operator("Or", Trait.BROADCASTS, Trait.COMMUTATIVE, inputs={"A": CONDITION, "B": CONDITION})
Xor = Operator("Xor", Trait.BROADCASTS, Trait.COMMUTATIVE, inputs={"A": CONDITION, "B": CONDITION})
Max = Operator("Max", Trait.BROADCASTS, Trait.COMMUTATIVE, Trait.CARRIES, Trait.IDENTITY_OF_ONE, inputs=data("data_0"))
Min = Operator("Min", Trait.BROADCASTS, Trait.COMMUTATIVE, Trait.CARRIES, Trait.IDENTITY_OF_ONE, inputs=data("data_0"))
Sum = Operator("Sum", Trait.BROADCASTS, Trait.COMMUTATIVE, Trait.IDENTITY_OF_ONE)
Mean = Operator("Mean", Trait.BROADCASTS, Trait.COMMUTATIVE, Trait.IDENTITY_OF_ONE)
BitwiseAnd = Operator("BitwiseAnd", Trait.BROADCASTS, Trait.COMMUTATIVE, inputs=data("A", "B"))
BitwiseOr = Operator("BitwiseOr", Trait.BROADCASTS, Trait.COMMUTATIVE, inputs=data("A", "B"))
BitwiseXor = Operator("BitwiseXor", Trait.BROADCASTS, Trait.COMMUTATIVE, inputs=data("A", "B"))

Sub = Operator("Sub", Trait.BROADCASTS)
Div = Operator("Div", Trait.BROADCASTS)
Pow = Operator("Pow", Trait.BROADCASTS)
Mod = Operator("Mod", Trait.BROADCASTS)
Where = Operator("Where", Trait.BROADCASTS, Trait.CARRIES, inputs={"condition": CONDITION, "X": DATA, "Y": DATA})
BitShift = Operator("BitShift", Trait.BROADCASTS, inputs={"X": DATA, "Y": Offset(0, 7)})

Equal = Operator(
    "Equal", Trait.BROADCASTS, Trait.COMMUTATIVE, Trait.COMPARISON, inputs=data("A", "B"), mirrored="Equal"
)

Greater = Operator("Greater", Trait.BROADCASTS, Trait.COMPARISON, mirrored="Less")
GreaterOrEqual = Operator("GreaterOrEqual", Trait.BROADCASTS, Trait.COMPARISON, mirrored="LessOrEqual")
Less = Operator("Less", Trait.BROADCASTS, Trait.COMPARISON, mirrored="Greater")
LessOrEqual = Operator("LessOrEqual", Trait.BROADCASTS, Trait.COMPARISON, mirrored="GreaterOrEqual")

PRelu = Operator("PRelu")
BitCast = Operator("BitCast")
SwiGLU = Operator("SwiGLU")
