"""Program builder: collects values, with operator overloading on terms."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxfuse.codegen.program.movement import Movement
from onnxfuse.codegen.program.program import Apply, Constant, Contraction, Move, Shape, Value
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError


@dataclass
class Builder:
    """Collects the values of a program; equal values are merged, except contractions.

    A product that a body contains twice becomes two products in one launch, each with its own epilogue.
    """

    values: list[Value] = field(default_factory=list)
    known: dict[Value, int] = field(default_factory=dict)

    def term(self, value: Value) -> Term:
        """Return the term for `value`, a new one only if no equal one exists."""
        if value not in self.known or isinstance(value, Contraction):
            self.known[value] = len(self.values)
            self.values.append(value)
        return Term(self, self.known[value])

    def constant(self, value: float | int | bool, dtype: int, shape: Shape = ()) -> Term:
        """Return a literal as a term of element type `dtype`."""
        return self.term(Constant(element_types.as_python(value, dtype), dtype, shape))

    def apply(self, op: str, *args: Term | float, dtype: int | None = None) -> Term:
        """Return `op` applied to terms; Python numbers get the element type of the first term."""
        first = next(a for a in args if isinstance(a, Term))
        terms = [a if isinstance(a, Term) else self.constant(a, first.dtype) for a in args]
        return self.term(Apply(op, tuple(t.index for t in terms), first.dtype if dtype is None else dtype))

    def move(self, how: Movement, *args: Term) -> Term:
        """Return a movement of terms of one element type."""
        if len({t.dtype for t in args}) != 1:
            raise UnsupportedError(
                f"data of types {' and '.join(element_types.name(t.dtype) for t in args)} moved together"
            )
        return self.term(Move(how, tuple(t.index for t in args), args[0].dtype))


@dataclass(frozen=True)
class Term:
    """A value under construction, with overloaded operators."""

    builder: Builder
    index: int

    @property
    def dtype(self) -> int:
        return self.builder.values[self.index].dtype

    @property
    def constant(self) -> Constant | None:
        """The constant behind this term, or None."""
        value = self.builder.values[self.index]
        return value if isinstance(value, Constant) else None

    def __add__(self, other: Term | float) -> Term:
        return self._arithmetic("add", self, other)

    def __radd__(self, other: float) -> Term:
        return self._arithmetic("add", other, self)

    def __sub__(self, other: Term | float) -> Term:
        return self._arithmetic("sub", self, other)

    def __rsub__(self, other: float) -> Term:
        return self._arithmetic("sub", other, self)

    def __mul__(self, other: Term | float) -> Term:
        return self._arithmetic("mul", self, other)

    def __rmul__(self, other: float) -> Term:
        return self._arithmetic("mul", other, self)

    def __truediv__(self, other: Term | float) -> Term:
        return self._arithmetic("div", self, other)

    def __rtruediv__(self, other: float) -> Term:
        return self._arithmetic("div", other, self)

    def __neg__(self) -> Term:
        return self.builder.apply("neg", self)

    def _arithmetic(self, op: str, left: Term | float, right: Term | float) -> Term:
        both = [t.dtype for t in (left, right) if isinstance(t, Term)]
        if len({element_types.computed(t) for t in both}) > 1:
            raise UnsupportedError(f"{op} of {' and '.join(element_types.name(t) for t in both)}")
        return self.builder.apply(op, left, right)
