"""Program builder: collects values, with operator overloading on terms."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx import TensorProto

from onnxfuse.codegen.program.movement import Movement
from onnxfuse.codegen.program.program import Apply, Constant, Contraction, Move, Shape, Value, arguments
from onnxfuse.codegen.program.whole_numbers import fits, holds, without
from onnxfuse.ops import scalar
from onnxfuse.ops.scalar import Function, Kind, Scalar
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError


@dataclass
class Builder:
    """Collects the values of a program; equal values are merged, except contractions.

    A product that a body contains twice becomes two products in one launch, each with its own epilogue.
    """

    values: list[Value] = field(default_factory=list)
    index_of: dict[Value, int] = field(default_factory=dict)

    def term(self, value: Value) -> Term:
        """Return the term for `value`, a new one only if no equal one exists."""
        if value not in self.index_of or isinstance(value, Contraction):
            self.index_of[value] = len(self.values)
            self.values.append(value)
        return Term(self, self.index_of[value])

    def constant(self, value: float | int | bool, dtype: int, shape: Shape = ()) -> Term:
        """Return a literal as a term of element type `dtype`."""
        return self.term(Constant(element_types.as_python(value, dtype), dtype, shape))

    def apply(self, op: Function, *args: Term | float, dtype: int | None = None) -> Term:
        """Return `op` applied to terms; Python numbers get the element type of the first term."""
        first = next(a for a in args if isinstance(a, Term))
        terms = [a if isinstance(a, Term) else self.constant(a, first.dtype) for a in args]
        if op == scalar.steps:
            terms = self._clipped_once(*terms)
        result = op.result(*(t.dtype for t in terms)) if dtype is None else dtype
        return self.term(Apply(op, tuple(t.index for t in terms), result))

    def _clipped_once(self, x: Term, scale: Term, low: Term, high: Term) -> list[Term]:
        """Return the arguments of `steps` whose lower bound does the work of a Relu: steps of it are not below 0."""
        value, step, least = self.values[x.index], scale.literal, low.literal
        is_relu = isinstance(value, Apply) and value.op == scalar.relu
        if is_relu and step is not None and step > 0 and least is not None and least <= 0 and high.literal is not None:
            return [Term(self, arguments(value)[0]), scale, self.constant(0.0, low.dtype), high]
        return [x, scale, low, high]

    def move(self, how: Movement, *args: Term) -> Term:
        """Return a movement of terms of one element type."""
        if len({t.dtype for t in args}) != 1:
            raise UnsupportedError(
                f"data of types {' and '.join(element_types.name(t.dtype) for t in args)} moved together"
            )
        return self.term(Move(how, tuple(t.index for t in args), args[0].dtype))


ARITHMETIC = frozenset({scalar.add, scalar.sub, scalar.mul, scalar.div})
"""Functions whose arguments are of one type."""


@dataclass(frozen=True)
class Term(Scalar):
    """A value under construction."""

    builder: Builder
    index: int

    @property
    def dtype(self) -> int:
        return self.builder.values[self.index].dtype

    @property
    def kind(self) -> Kind:
        if element_types.is_real(self.dtype):
            return Kind.REAL
        return Kind.INTEGER if element_types.is_integer(self.dtype) else Kind.BOOLEAN

    @property
    def constant(self) -> Constant | None:
        """The constant behind this term, or None."""
        value = self.builder.values[self.index]
        return value if isinstance(value, Constant) else None

    @property
    def literal(self) -> float | int | bool | None:
        return None if self.constant is None else self.constant.value

    def number(self, value: float) -> Term:
        return self.builder.constant(value, self.dtype)

    def cast(self, to: int) -> Term:
        element_types.require(to)
        if self.dtype == to:
            return self
        values = self.builder.values
        value = values[self.index]
        if isinstance(value, Constant) and holds(to, self.dtype):  # a zero point: what is known of sums with it is kept
            return self.builder.constant(value.value, to, value.shape)
        if isinstance(value, Apply) and value.op == scalar.cast:
            source = Term(self.builder, value.args[0])
            # Quantized and dequantized at once, or the other way around.
            if source.dtype == to and (fits(values, source.index, self.dtype) or holds(self.dtype, to)):
                return source
        return self.builder.apply(scalar.cast, self, dtype=to)

    def is_computed_as(self, dtype: int) -> bool:
        return element_types.computed(self.dtype) == element_types.computed(dtype)

    def retype(self, to: int) -> Term:
        return self.builder.apply(scalar.retype, self, dtype=to)

    def apply(self, function: Function, *args: Term | float) -> Term:
        both = [t.dtype for t in args if isinstance(t, Term)]
        if function in ARITHMETIC and len({element_types.computed(t) for t in both}) > 1:
            raise UnsupportedError(f"{function} of {' and '.join(element_types.name(t) for t in both)}")
        if function == scalar.sub and all(isinstance(t, Term) and t.dtype == TensorProto.FLOAT for t in args):
            left, right = (t.index for t in args if isinstance(t, Term))
            kept = without(self.builder.values, left, right)
            if kept is not None:  # quantized and dequantized with one zero point
                return Term(self.builder, kept)
        return self.builder.apply(function, *args)


def as_term(value: Scalar) -> Term:
    """Return a value that a meaning has composed of terms, as the term that it is."""
    assert isinstance(value, Term)
    return value
