"""Operators on arrays, by what their entries say that they compute: the scalar language in NumPy.

Floating-point numbers are computed in float64, and rounded once to their type.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
from onnx import TensorProto, helper

from onnxfuse.ops import Operator, scalar
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
    scalar.log: np.log, scalar.sqrt: np.sqrt, scalar.erf: _erf, scalar.one_plus_erf: lambda x: _erfc(-x),
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

OVER: Mapping[str, Callable[..., Any]] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


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
        return type(self)(_read(self.array.astype(target)), to)

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


def _read(array: Array) -> Array:
    """Return an array with floating-point numbers in float64; bfloat16 has no kind of its own in NumPy."""
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


@dataclass(frozen=True)
class ArrayNode:
    """A node with the arrays that it reads."""

    op_type: str
    opset: int
    operands: Sequence[Array | None]
    attributes: Mapping[str, Any]

    def term(self, position: int, *kinds: Kind) -> Values:
        """Return the operand at `position`, which must be present, and of one of these kinds if any are given."""
        found = self.optional(position)
        if found is None or (kinds and found.kind not in kinds):
            raise self.refusal(f"without its input {position}" if found is None else f"of {found.array.dtype}")
        return found

    def optional(self, position: int) -> Values | None:
        """Return the operand at `position`, None if absent."""
        array = self.operands[position] if position < len(self.operands) else None
        if array is None:
            return None
        return Values(_read(array), helper.np_dtype_to_tensor_dtype(array.dtype), constant=array.size == 1)

    def real(self, position: int) -> Values:
        """Return the operand at `position`, a floating-point number."""
        return self.term(position, Kind.REAL)

    def alike(self, *kinds: Kind, first: int = 0, count: int | None = None) -> tuple[Values, ...]:
        """Return `count` operands from `first` on, or all, which must have one element type, of one of these kinds if
        any are given."""
        end = len(self.operands) if count is None else first + count
        found = tuple(self.term(i, *kinds) for i in range(first, end))
        if len({v.dtype for v in found}) != 1:
            raise self.refusal(f"of {' and '.join(str(v.array.dtype) for v in found)}")
        return found

    def over(self, kind: str, x: Scalar, axis: int, *, onward: bool) -> Values:
        """Return a reduction over an axis, and with `onward` over all axes after it."""
        assert isinstance(x, Values)
        first = axis % x.array.ndim
        axes = tuple(range(first, x.array.ndim)) if onward else (first,)
        return Values(np.asarray(OVER[kind](x.array, axis=axes, keepdims=True)), x.type)

    def number(self, attribute: str, default: float) -> float:
        """Return a numeric attribute. Attributes are float32 in ONNX, and so are their defaults."""
        value = self.attributes.get(attribute, default if isinstance(default, int) else float(np.float32(default)))
        return float(value) if isinstance(value, float) else int(value)

    def text(self, attribute: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attributes.get(attribute, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def refusal(self, reason: str) -> ValueError:
        """Return the error to raise for a node without a meaning here, such as Dropout "in training mode"."""
        return ValueError(f"{self.op_type} {reason}")


def computed(
    entry: Operator, opset: int, operands: Sequence[Array | None], attributes: Mapping[str, Any]
) -> tuple[Array, ...]:
    """Return the outputs of a node of an elementwise operator, or of one that reduces within rows.

    Raises ValueError for a node without a meaning.
    """
    node = ArrayNode(entry, opset, operands, attributes)
    with np.errstate(all="ignore"):
        if entry.rows is not None:
            return tuple(map(_stored, entry.rows(node)))
        assert entry.meaning is not None
        return (_stored(entry.meaning(node)),)


def _stored(found: Scalar) -> Array:
    """Return elements in their type."""
    assert isinstance(found, Values)
    return np.asarray(found.array).astype(helper.tensor_dtype_to_np_dtype(found.dtype))


@cache
def reference_operators(entries: tuple[Operator, ...]) -> tuple[type[Any], ...]:
    """Return classes for onnx's evaluator of operators whose entries say what they compute."""
    from onnx.reference.op_run import OpRun  # this import takes 20 ms, which a session that folds nothing avoids

    class Meant(OpRun):
        entry: Operator

        def run(
            self, *inputs: Any, linked_attributes: Mapping[str, Any] | None = None, **_unused: Any
        ) -> tuple[Any, ...]:
            """Return the outputs; `linked_attributes` are those of the enclosing function."""
            attributes = {
                a.name: (linked_attributes or {})[a.ref_attr_name] if a.ref_attr_name else helper.get_attribute_value(a)
                for a in self.onnx_node.attribute
            }
            found = computed(self.entry, int(self.run_params["opsets"].get("", 1)), inputs, attributes)
            return found[: len(self.onnx_node.output)]

        def _run(self, *inputs: Any) -> tuple[Any, ...]:
            return self.run(*inputs)

    return tuple(type(str(e), (Meant,), {"op_domain": e.domain, "entry": e}) for e in entries)
