"""Elementwise operators: arithmetic, activations, comparisons, logic, casts."""

from onnxfuse.ops.registry import Entries, Trait, entries

# PRelu's slope may have more axes than its input: ONNX Runtime gives them to the output, ONNX does not.
ENTRIES: Entries = (
    *entries(
        "Relu LeakyRelu Sigmoid HardSigmoid HardSwish Tanh Clip Elu Selu Celu Softplus Softsign Gelu Mish "
        "Swish Erf Abs Neg ThresholdedRelu Shrink",
        Trait.KEEPS_SHAPE,
        Trait.FINITE_FROM_ZERO,
    ),
    *entries(
        "Sqrt Exp Log Reciprocal Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Floor Ceil Round Sign",
        Trait.KEEPS_SHAPE,
    ),
    *entries(
        "Not BitwiseNot IsNaN IsInf Cast CastLike Dropout",
        Trait.KEEPS_SHAPE,
    ),
    *entries(
        "Add Mul And Or Xor Max Min Sum Mean BitwiseAnd BitwiseOr BitwiseXor",
        Trait.BROADCASTS,
        Trait.COMMUTATIVE,
    ),
    *entries(
        "Sub Div Pow Mod Where BitShift",
        Trait.BROADCASTS,
    ),
    *entries(
        "Equal",
        Trait.BROADCASTS,
        Trait.COMMUTATIVE,
        Trait.COMPARISON,
    ),
    *entries(
        "Greater GreaterOrEqual Less LessOrEqual",
        Trait.BROADCASTS,
        Trait.COMPARISON,
    ),
    *entries(
        "PRelu BitCast SwiGLU",
    ),
)
