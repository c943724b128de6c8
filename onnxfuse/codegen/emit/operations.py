"""C++ spelling of each scalar operation, rounding and reduction, over the names of include/math.cuh."""

from collections.abc import Sequence

from onnx import TensorProto

from onnxfuse.ops.scalar import Function

EXPRESSIONS: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "minus": "minus({0}, {1})",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "reciprocal": "1 / {0}",
    "one_plus_erf": "math::one_plus_erf({0})",
    "erf_gelu": "math::erf_gelu({0}, {1})",
    "erf_gelu_over": "math::erf_gelu({0}, 1 / {1})",
    "at_least": "{0} < {1} ? {1} : {0}",
    "at_most": "{0} > {1} ? {1} : {0}",
    "pow_1": "{0}",
    "pow_2": "{0} * {0}",
    "pow_3": "{0} * {0} * {0}",
    "pow_minus_1": "1 / {0}",
    "pow_half": "math::pow_half({0})",
    "pow_minus_half": "math::pow_minus_half({0})",
    "fmod_integer": "math::rem_integer({0}, {1})",
    "fmod_real": "math::fmod({0}, {1})",
    "equal": "{0} == {1}",
    "less": "{0} < {1}",
    "greater": "{0} > {1}",
    "less_equal": "{0} <= {1}",
    "greater_equal": "{0} >= {1}",
    "and": "{0} && {1}",
    "or": "{0} || {1}",
    "xor": "{0} != {1}",
    "not": "!{0}",
    "bit_and": "{0} & {1}",
    "bit_or": "{0} | {1}",
    "bit_xor": "{0} ^ {1}",
    "bit_not": "~{0}",
    "shift_left": "{0} << {1}",
    "shift_right": "{0} >> {1}",
    "where": "{0} ? {1} : {2}",
    "retype": "{0}",
    "looked_up": "{0}",
}
"""C++ of the functions that are no function of namespace `math` of the same name and arguments."""


def expression_of(function: Function, args: Sequence[str]) -> str:
    """Return the C++ expression of a scalar function of these arguments."""
    text = EXPRESSIONS.get(function)
    return f"math::{function}({', '.join(args)})" if text is None else text.format(*args)


SIXTEEN_BITS = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


ROUND = {"f16": "round_to_f16", "bf16": "round_to_bf16", "e4m3": "round_to_e4m3"}


# Combination of two partial results of a reduction; a mean stays a sum until the end. An index is combined with its
# value.
COMBINE = {
    "sum": "{0} + {1}",
    "mean": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "math::max({0}, {1})",
    "min": "math::min({0}, {1})",
    "argmax": "math::better<false, false>({0}, {1})",
    "argmin": "math::better<true, false>({0}, {1})",
    "argmax_last": "math::better<false, true>({0}, {1})",
    "argmin_last": "math::better<true, true>({0}, {1})",
}
