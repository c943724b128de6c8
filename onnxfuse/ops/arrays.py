"""The scalar language in NumPy: all elements of a value at once.

Floating-point numbers are computed in float64, and rounded to their type where they are converted.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from onnx import TensorProto, helper

from onnxfuse.ops import scalar
from onnxfuse.ops.scalar import Function, Kind, Scalar

Array = np.ndarray[Any, np.dtype[Any]]

_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _quotient(a: Array, b: Array) -> Array:
    """Return a / b, of integers rounded towards 0."""
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    whole = np.floor_divide(a, b)
    return np.asarray(whole + ((whole < 0) & (whole * b != a)))


NUMPY: Mapping[Function, Callable[..., Any]] = {
    scalar.add: np.add, scalar.sub: np.subtract, scalar.mul: np.multiply, scalar.div: _quotient,
    scalar.neg: np.negative, scalar.absolute: np.abs, scalar.sign: np.sign, scalar.reciprocal: np.reciprocal,
    scalar.maximum: np.maximum, scalar.minimum: np.minimum, scalar.mod_integer: np.mod, scalar.mod_real: np.mod,
    scalar.fmod_integer: np.fmod, scalar.fmod_real: np.fmod, scalar.floor: np.floor, scalar.ceil: np.ceil,
    scalar.round_half_even: np.rint, scalar.power: np.power, scalar.exp: np.exp, scalar.expm1: np.expm1,
    scalar.log: np.log, scalar.sqrt: np.sqrt, scalar.erf: _erf, scalar.one_plus_erf: lambda x, *_: _erfc(-x),
    scalar.sin: np.sin, scalar.cos: np.cos, scalar.tan: np.tan, scalar.asin: np.arcsin, scalar.acos: np.arccos,
    scalar.atan: np.arctan, scalar.sinh: np.sinh, scalar.cosh: np.cosh, scalar.tanh: np.tanh,
    scalar.asinh: np.arcsinh, scalar.acosh: np.arccosh, scalar.atanh: np.arctanh,
    scalar.softplus: lambda x: np.logaddexp(x, 0), scalar.equal: np.equal, scalar.less: np.less,
    scalar.greater: np.greater, scalar.less_equal: np.less_equal, scalar.greater_equal: np.greater_equal,
    scalar.is_nan: np.isnan, scalar.where: np.where, scalar.logical_and: np.logical_and,
    scalar.logical_or: np.logical_or, scalar.logical_xor: np.logical_xor, scalar.logical_not: np.logical_not,
    scalar.bit_and: np.bitwise_and, scalar.bit_or: np.bitwise_or,
    scalar.bit_xor: np.bitwise_xor, scalar.bit_not: np.invert,
    scalar.shift_left: np.left_shift, scalar.shift_right: np.right_shift,
}  # fmt: skip
"""Functions that have no formula."""


FLOATS = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE})


@dataclass(frozen=True)
class Values(Scalar):
    """All elements of a value at once."""

    array: Array
    """The elements, floating-point numbers in float64."""
    type: int
    constant: bool = False

    @property
    def dtype(self) -> int:
        return self.type

    @property
    def kind(self) -> Kind:
        kinds = {"f": Kind.REAL, "b": Kind.BOOLEAN}
        return kinds.get(self.array.dtype.kind, Kind.INTEGER)

    @property
    def literal(self) -> float | int | bool | None:
        return self.array.item() if self.constant else None

    def number(self, value: float) -> Self:
        return type(self)(np.asarray(value, self.array.dtype), self.type, constant=True)

    def cast(self, to: int) -> Self:
        target = helper.tensor_dtype_to_np_dtype(to)
        if target.kind not in "iubf" and to != TensorProto.BFLOAT16:
            raise ValueError(f"a conversion to {target}")
        return type(self)(read(self.array.astype(target)), to)

    def is_computed_as(self, dtype: int) -> bool:
        return self.is_real and dtype in FLOATS

    def retype(self, to: int) -> Self:
        return self if self.type == TensorProto.DOUBLE else type(self)(self.array, to)

    def apply(self, function: Function, *args: Self | float) -> Self:
        first = next(a for a in args if isinstance(a, Values))
        values = [a if isinstance(a, Values) else first.number(a) for a in args]
        if function.formula is not None:
            found = function.formula(*values)
            assert isinstance(found, type(self))
            return found
        return type(self)(
            np.asarray(NUMPY[function](*(v.array for v in values))), function.result(*(v.type for v in values))
        )


def read(array: Array) -> Array:
    """Return an array with floating-point numbers in float64; bfloat16 has no kind of its own in NumPy."""
    return array if array.dtype.kind in "iub" else array.astype(np.float64)
