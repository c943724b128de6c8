"""The scalar language over integers that may be symbolic: small tensors computed from shapes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Self

import numpy as np
from onnx import TensorProto

from onnxfuse.ops import scalar
from onnxfuse.ops.scalar import Function, Kind, Scalar
from onnxfuse.ops.shapes.extents import UnknownError
from onnxfuse.ops.shapes.node import Elements, ShapeNode
from onnxfuse.ops.shapes.products import reduced_axes
from onnxfuse.shapes.types import Dim
from onnxfuse.shapes.value_facts import Ratio
from onnxfuse.symbolic.integer import IntLike, bounds, ceiling, exact_quotient, largest, smallest

_REALS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def _quotient(a: IntLike, b: IntLike) -> Dim:
    """Return a / b rounded towards zero, as ONNX does; None if the sign of a symbolic quotient is not known."""
    exact = exact_quotient(a, b)
    return a // b if exact is None and bounds(a)[0] >= 0 and bounds(b)[0] >= 0 and b != 0 else exact


def _real_quotient(a: IntLike, b: IntLike) -> Dim | Ratio:
    """Return a / b of floating-point numbers."""
    exact = exact_quotient(a, b)
    return Ratio(a, b) if exact is None and isinstance(b, int) and b > 0 else exact


def _remainder(a: IntLike, b: IntLike) -> Dim:
    """Return the remainder, None where its sign may be that of either operand."""
    return a % b if bounds(a)[0] >= 0 and bounds(b)[0] >= 0 and b != 0 else None


def _modulo(a: IntLike, b: IntLike) -> Dim:
    """Return the remainder with the sign of the divisor."""
    return a % b if isinstance(a, int) and isinstance(b, int) and b != 0 else _remainder(a, b)


def _equal(a: IntLike, b: IntLike) -> Dim:
    """Return whether two integers are equal, 1 or 0; None if they may be."""
    least, most = bounds(a - b)
    return 1 if least == most == 0 else 0 if least > 0 or most < 0 else None


def _less(a: IntLike, b: IntLike) -> Dim:
    """Return whether an integer is less than another one, 1 or 0; None if it may be."""
    least, most = bounds(a - b)
    return 1 if most < 0 else 0 if least >= 0 else None


def _not(a: Dim) -> Dim:
    return None if a is None else 1 - a


FUNCTIONS: Mapping[Function, Callable[..., Dim | Ratio]] = {
    scalar.add: lambda a, b: a + b, scalar.sub: lambda a, b: a - b, scalar.mul: lambda a, b: a * b,
    scalar.neg: lambda a: -a, scalar.div: _quotient, scalar.mod_integer: _modulo, scalar.mod_real: _modulo,
    scalar.fmod_integer: _remainder, scalar.fmod_real: _remainder, scalar.maximum: largest, scalar.minimum: smallest,
    scalar.equal: _equal, scalar.less: _less, scalar.greater: lambda a, b: _less(b, a),
    scalar.less_equal: lambda a, b: _not(_less(b, a)), scalar.greater_equal: lambda a, b: _not(_less(a, b)),
    scalar.logical_not: _not, scalar.logical_and: smallest, scalar.logical_or: largest,
}  # fmt: skip
"""Functions of integers. Others tell nothing, and neither does an element that is not known."""


@dataclass(frozen=True)
class Whole(Scalar):
    """All elements of a small tensor of integers."""

    array: Elements
    floats: bool
    """Whether they are floating-point numbers: their quotients are not rounded."""

    @property
    def dtype(self) -> int:
        return TensorProto.FLOAT if self.floats else TensorProto.INT64

    @property
    def kind(self) -> Kind:
        return Kind.REAL if self.floats else Kind.INTEGER

    @property
    def literal(self) -> float | int | bool | None:
        only = self.array.item() if self.array.size == 1 else None
        return only if isinstance(only, int) else None

    def number(self, value: float) -> Self:
        if int(value) != value:
            raise UnknownError(f"a computation with {value}")
        return type(self)(np.array(int(value), object), self.floats)

    def cast(self, to: int) -> Self:
        if to in _REALS:
            return type(self)(self.array, True)
        whole = self._each(
            lambda x: None if isinstance(x, Ratio) and bounds(x.above)[0] < 0 else _rounded(x, down=True), False
        )
        return whole if to != TensorProto.BOOL else scalar.logical_not(scalar.equal(whole, 0))

    def is_computed_as(self, dtype: int) -> bool:
        return self.floats and dtype in _REALS

    def retype(self, to: int) -> Self:
        return self

    def apply(self, function: Function, *args: Self | float) -> Self:
        first = next(a for a in args if isinstance(a, Whole))
        values = [a if isinstance(a, Whole) else first.number(a) for a in args]
        if function.formula is not None:
            result = function.formula(*values)
            assert isinstance(result, type(self))
            return result
        is_real = values[function.typed_by].floats and not function.boolean
        if function == scalar.where:
            return type(self)(_elementwise(_where, *(v.array for v in values)), is_real)
        if function in (scalar.floor, scalar.ceil):
            return self._each(lambda x: _rounded(x, down=function == scalar.floor), is_real)
        compute = _real_quotient if function == scalar.div and is_real else FUNCTIONS.get(function)
        if compute is None:
            raise UnknownError(f"{function} of integers")
        return type(self)(_elementwise(_lifted(compute), *(v.array for v in values)), is_real)

    def _each(self, compute: Callable[[Any], Any], floats: bool) -> Self:
        return type(self)(_elementwise(compute, self.array), floats)


def _elementwise(compute: Callable[..., Any], *arrays: Elements) -> Elements:
    return np.asarray(np.frompyfunc(compute, len(arrays), 1)(*arrays), object)


def _lifted(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of elements of which one may not be known, or be no integer."""
    return lambda *args: None if any(a is None or isinstance(a, Ratio) for a in args) else compute(*args)


def _where(condition: Dim, yes: Any, no: Any) -> Any:
    return None if not isinstance(condition, int) else yes if condition else no


def _rounded(x: Any, *, down: bool) -> Any:
    """Return an element as an integer."""
    if not isinstance(x, Ratio):
        return x
    return x.above // x.below if down else ceiling(x.above, x.below)


@dataclass(frozen=True)
class WholeNode:
    """A node whose meaning is asked for, with the elements of its operands; their types are floats or not."""

    node: ShapeNode
    reals: Sequence[bool]
    """Whether each operand is of a floating-point type."""

    @property
    def opset(self) -> int:
        return self.node.opset

    def term(self, position: int, *kinds: Kind) -> Whole:
        """Return the operand at `position`."""
        return Whole(self.node.elements(position), self.reals[position])

    def optional(self, position: int) -> Whole | None:
        """Return the operand at `position`, None if absent."""
        absent = position >= len(self.reals) or not self.node.is_present(position)
        return None if absent else self.term(position)

    def real(self, position: int) -> Whole:
        """Return the operand at `position`."""
        return self.term(position)

    def alike(self, *kinds: Kind, first: int = 0, count: int | None = None) -> tuple[Whole, ...]:
        """Return `count` operands from `first` on, or all."""
        end = len(self.reals) if count is None else first + count
        return tuple(map(self.term, range(first, end)))

    def number(self, attribute: str, default: float) -> float:
        """Return a numeric attribute."""
        value = self.node.attribute(attribute, default)
        return value if isinstance(value, int) else float(value)

    def text(self, attribute: str, default: str) -> str:
        """Return a string attribute."""
        value = self.node.attribute(attribute, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def refusal(self, reason: str) -> UnknownError:
        """Return the error to raise for a node without a meaning here, such as Dropout "in training mode"."""
        return UnknownError(reason)

    def over(self, kind: str, x: Scalar) -> Whole:
        """Return a reduction over the axes of the node, whose extents are 1 in the result."""
        function = _OVER.get(kind)
        if function is None or not isinstance(x, Whole):
            raise UnknownError(f"a {kind} of integers")
        array = x.array
        for axis in reduced_axes(self.node):
            parts = [Whole(part, x.floats) for part in np.split(array, array.shape[axis], axis)]
            array = reduce(function, parts).array
        return Whole(array, x.floats)


_OVER: Mapping[str, Callable[[Whole, Whole], Whole]] = {
    "sum": scalar.add, "prod": scalar.mul, "max": scalar.maximum, "min": scalar.minimum,
}  # fmt: skip
