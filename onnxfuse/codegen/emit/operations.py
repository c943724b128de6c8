"""C++ spelling of each scalar operation, rounding and reduction, over the names of templates/cuda/math.cuh."""

from onnx import TensorProto

EXPRESSIONS: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "minus": "minus({0}, {1})",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "math::abs({0})",
    "sign": "math::sign({0})",
    "reciprocal": "1 / {0}",
    "exp": "math::exp({0})",
    "expm1": "math::expm1({0})",
    "log": "math::log({0})",
    "sqrt": "math::sqrt({0})",
    "erf": "math::erf({0})",
    "one_plus_erf": "math::one_plus_erf({0})",
    "floor": "math::floor({0})",
    "ceil": "math::ceil({0})",
    "round_half_even": "math::round_half_even({0})",
    "sin": "math::sin({0})",
    "cos": "math::cos({0})",
    "tan": "math::tan({0})",
    "asin": "math::asin({0})",
    "acos": "math::acos({0})",
    "atan": "math::atan({0})",
    "sinh": "math::sinh({0})",
    "cosh": "math::cosh({0})",
    "tanh": "math::tanh({0})",
    "asinh": "math::asinh({0})",
    "acosh": "math::acosh({0})",
    "atanh": "math::atanh({0})",
    "sigmoid": "math::sigmoid({0})",
    "softplus": "math::softplus({0})",
    "mish": "math::mish({0})",
    "gelu": "math::gelu({0})",
    "erf_gelu": "math::erf_gelu({0}, {1})",
    "erf_gelu_over": "math::erf_gelu({0}, 1 / {1})",
    "gelu_tanh": "math::gelu_tanh({0})",
    "relu": "math::relu({0})",
    "clip": "math::clip({0}, {1}, {2})",
    "at_least": "{0} < {1} ? {1} : {0}",
    "at_most": "{0} > {1} ? {1} : {0}",
    "max": "math::max({0}, {1})",
    "min": "math::min({0}, {1})",
    "pow": "math::pow({0}, {1})",
    "pow_1": "{0}",
    "pow_2": "{0} * {0}",
    "pow_3": "{0} * {0} * {0}",
    "pow_minus_1": "1 / {0}",
    "pow_half": "math::pow_half({0})",
    "pow_minus_half": "math::pow_minus_half({0})",
    "mod_integer": "math::mod_integer({0}, {1})",
    "mod_real": "math::mod_real({0}, {1})",
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
    "is_nan": "math::is_nan({0})",
    "where": "{0} ? {1} : {2}",
    "retype": "{0}",
    "looked_up": "{0}",
}


# Operations with a cheaper form for 16-bit floats, in namespace math16.
SHORTER = frozenset(
    {"exp", "sqrt", "sigmoid", "mish", "one_plus_erf", "gelu", "erf_gelu", "erf_gelu_over", "gelu_tanh"}
)


SIXTEEN_BITS = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


ROUND = {"f16": "round_to_f16", "bf16": "round_to_bf16"}


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
