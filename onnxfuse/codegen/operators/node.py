"""A body node with resolved operands, the input of the operator tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from onnxfuse.codegen.program.builder import Builder, Term, as_term
from onnxfuse.codegen.program.movement import ExtentOf
from onnxfuse.codegen.program.program import Reduce
from onnxfuse.ops import Operator
from onnxfuse.ops.scalar import Kind, Scalar
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError


@dataclass(frozen=True)
class ShapeOf:
    """The shape of a value: a possible target of a Reshape."""

    of: Term


@dataclass(frozen=True)
class ExtentList:
    """An integer list, some elements of which are extents of values: a possible target of an Expand."""

    numbers: tuple[int | ExtentOf, ...]
    """The integers, with references to extents of `of`."""
    of: tuple[Term, ...]


Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
Known = Term | Array | ShapeOf | ExtentList


@dataclass(frozen=True)
class BodyNode:
    """A node of the body with resolved operands, the input of the operator tables."""

    op_type: str
    opset: int
    builder: Builder
    operands: tuple[Known | None, ...]
    attributes: dict[str, object]
    outputs: int = 1
    """Number of outputs that the node lists."""

    def term(self, position: int, *kinds: Kind) -> Term:
        """Return the operand at `position`, which must be present, and of one of these kinds if any are given."""
        operand = self.optional(position)
        if operand is None:
            raise self.refusal(f"without its input {position}")
        return self._of(operand, kinds)

    def optional(self, position: int) -> Term | None:
        """Return the operand at `position` as a term, None if absent."""
        operand = self.operands[position] if position < len(self.operands) else None
        if isinstance(operand, ShapeOf | ExtentList):
            raise UnsupportedError(f"{self.op_type} of a shape")
        return self._as_term(operand) if isinstance(operand, np.ndarray) else operand

    def shape_of(self, position: int) -> Term | None:
        """Return the value whose shape the operand at `position` is, None for other operands."""
        operand = self.operands[position] if position < len(self.operands) else None
        return operand.of if isinstance(operand, ShapeOf) else None

    def real(self, position: int) -> Term:
        """Return the operand at `position`, which must be of a floating-point type."""
        return self.term(position, Kind.REAL)

    def terms(self) -> tuple[Term, ...]:
        """Return all operands."""
        return tuple(self.term(i) for i in range(len(self.operands)))

    def alike(self, *kinds: Kind, first: int = 0, count: int | None = None) -> tuple[Term, ...]:
        """Return `count` operands from `first` on, or all, which must have one element type, of one of these kinds if
        any are given."""
        terms = self.terms()[first:] if count is None else tuple(self.term(first + i) for i in range(count))
        if len({t.dtype for t in terms}) != 1:
            raise self.refusal(f"of {' and '.join(element_types.name(t.dtype) for t in terms)}")
        self._of(terms[0], kinds)
        return terms

    def over(self, kind: str, x: Scalar, axis: int, *, onward: bool) -> Term:
        """Return a reduction over an axis, and with `onward` over all axes after it."""
        return reduced(kind, as_term(x), (axis,), onward=onward)

    def refusal(self, reason: str) -> UnsupportedError:
        """Return the error to raise for a node without a meaning here, such as Dropout "in training mode"."""
        return UnsupportedError(f"{self.op_type} {reason}")

    def _of(self, x: Term, kinds: tuple[Kind, ...]) -> Term:
        if kinds and x.kind not in kinds:
            expected = {Kind.INTEGER: ", expected integers", Kind.BOOLEAN: ", expected BOOL"}.get(kinds[-1], "")
            raise self.refusal(f"of {element_types.name(x.dtype)}{expected if len(kinds) == 1 else ''}")
        return x

    def integers(self, position: int) -> tuple[int, ...] | None:
        """Return a constant integer operand, None if absent."""
        operand = self.operands[position] if position < len(self.operands) else None
        if operand is None:
            return None
        array = self.constant(position)
        if array.dtype.kind not in "iu":
            raise UnsupportedError(f"{self.op_type} whose input {position} is {array.dtype}, expected integers")
        return tuple(int(n) for n in array.reshape(-1))

    def constant(self, position: int) -> Array:
        """Return the operand at `position`, which must be a constant of the body."""
        operand = self.operands[position] if position < len(self.operands) else None
        if not isinstance(operand, np.ndarray):
            raise UnsupportedError(f"{self.op_type} whose input {position} is not a constant of the body")
        return operand

    def number(self, attribute: str, default: float) -> float:
        """Return a numeric attribute. Attributes are float32 in ONNX, and so are their defaults."""
        value = self.attributes.get(attribute, default if isinstance(default, int) else float(np.float32(default)))
        if not isinstance(value, int | float):
            raise UnsupportedError(f"{self.op_type} with {attribute}={value!r}, expected a number")
        return value

    def text(self, attribute: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attributes.get(attribute, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def _as_term(self, array: Array) -> Term:
        if array.size != 1:
            raise UnsupportedError(f"a constant of shape {list(array.shape)} inside the body, expected one element")
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return self.builder.constant(array.reshape(-1)[0].item(), dtype, array.shape)


def reduced(kind: str, x: Term, axes: tuple[int, ...], *, onward: bool) -> Term:
    """Return a reduction over axes, to length 1; `onward`: over one axis and all after it."""
    return x.builder.term(Reduce(kind, x.index, axes, onward, x.dtype))


Handler = Callable[[BodyNode], tuple[Known, ...]]
Handlers = dict[tuple[str, str], Handler]
"""What operators mean in a program, by domain and name."""


def handles(table: Handlers, *entries: Operator) -> Callable[[Handler], Handler]:
    """Return a decorator that enters a handler of these operators in a table."""

    def enter(handler: Handler) -> Handler:
        table.update({(entry.domain, entry): handler for entry in entries})
        return handler

    return enter
