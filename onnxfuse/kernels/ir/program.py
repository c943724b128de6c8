"""A fused op's body as a small typed expression program: inputs, constants, scalar operations, row reductions, moves.

Composite ops (LayerNormalization, Softmax, Clip, ...) are spelled out in primitives by `pointwise_ops`; here are the
program itself and the walk over the function that builds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.kernels.ir import movement, types
from onnxfuse.kernels.ir.movement import Movement
from onnxfuse.kernels.ir.types import UnsupportedError
from onnxfuse.model.fused import FusedOp

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """One element of an input of the op."""

    index: int
    """Position among the inputs of the op."""
    dtype: int
    """Element type, `onnx.TensorProto.DataType`."""


@dataclass(frozen=True)
class Constant:
    """A number that stands in the body."""

    value: float | int | bool
    dtype: int
    shape: Shape
    """Its shape in the model, all ones: it takes part in broadcasting."""


@dataclass(frozen=True)
class Apply:
    """A scalar operation on values that come before it."""

    op: str
    """A name of `functor.EXPRESSIONS`."""
    args: tuple[int, ...]
    """Indices of earlier values."""
    dtype: int


@dataclass(frozen=True)
class Reduce:
    """A reduction over some axes; the result has length 1 on these."""

    kind: str
    """`sum`, `mean`, `max`, `min`, `prod`; `argmax`, `argmin` and, of equals the last one, `argmax_last`,
    `argmin_last`."""
    arg: int
    """Index of an earlier value."""
    axes: tuple[int, ...]
    """Axes of the argument, negative from the end."""
    onward: bool
    """True: `axes` is one axis, and it and all axes after it are reduced."""
    dtype: int


@dataclass(frozen=True)
class Move:
    """Elements of earlier values, unchanged, at other places."""

    how: Movement
    args: tuple[int, ...]
    """Indices of earlier values."""
    dtype: int


Value = Input | Constant | Apply | Reduce | Move


@dataclass(frozen=True)
class Output:
    """What an output of the op is."""

    value: int
    """Index of the value."""
    dtype: int
    """Element type that it is stored in."""


@dataclass(frozen=True)
class Program:
    """The body: values in an order in which each one comes after its arguments."""

    values: tuple[Value, ...]
    outputs: tuple[Output, ...]
    inputs: tuple[int, ...]
    """Element type of each input of the op, read or not."""

    def live(self) -> frozenset[int]:
        """Return the indices of the values that some output depends on."""
        return self._live

    @cached_property
    def _live(self) -> frozenset[int]:
        seen: set[int] = set()
        stack = [o.value for o in self.outputs]
        while stack:
            index = stack.pop()
            if index not in seen:
                seen.add(index)
                stack.extend(arguments(self.values[index]))
        return frozenset(seen)

    def reductions(self) -> tuple[int, ...]:
        """Return the indices of the reductions that some output depends on, in order."""
        live = self.live()
        return tuple(i for i, v in enumerate(self.values) if isinstance(v, Reduce) and i in live)

    def moves(self) -> bool:
        """Return whether some output depends on moved data."""
        return any(isinstance(self.values[i], Move) for i in self.live())

    def levels(self) -> tuple[int, ...]:
        """Return for each value how many reductions, one after the other, must be done before it is known."""
        levels: list[int] = []
        for value in self.values:
            before = max((levels[a] for a in arguments(value)), default=0)
            levels.append(before + isinstance(value, Reduce))
        return tuple(levels)

    def shapes(self, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Return the shape of each value for these shapes of the op's inputs."""
        shapes: list[Shape] = []
        for value in self.values:
            match value:
                case Input(index=index):
                    shapes.append(input_shapes[index])
                case Constant(shape=shape):
                    shapes.append(shape)
                case Apply(args=args):
                    shapes.append(broadcast(*(shapes[a] for a in args)))
                case Reduce():
                    reduced = reduced_axes(value, len(shapes[value.arg]))
                    shapes.append(tuple(1 if d in reduced else n for d, n in enumerate(shapes[value.arg])))
                case Move(how=how, args=args):
                    shapes.append(movement.shape(how, tuple(shapes[a] for a in args)))
        return tuple(shapes)


def arguments(value: Value) -> tuple[int, ...]:
    """Return the indices of the values that `value` is computed from."""
    match value:
        case Apply(args=args) | Move(args=args):
            return args
        case Reduce(arg=arg):
            return (arg,)
        case _:
            return ()


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that these broadcast to by numpy's rule."""
    try:
        return tuple(int(n) for n in np.broadcast_shapes(*shapes))
    except ValueError:
        raise UnsupportedError(f"shapes {', '.join(map(str, shapes))} do not broadcast") from None


def reduced_axes(reduce: Reduce, rank: int) -> frozenset[int]:
    """Return the axes, counted from 0, that `reduce` takes away from an argument of this rank."""
    axes = tuple(a + rank if a < 0 else a for a in reduce.axes)
    if any(not 0 <= a < max(rank, 1) for a in axes):
        raise UnsupportedError(f"a reduction over axes {list(reduce.axes)} of a value of rank {rank}")
    return frozenset(range(axes[0], rank)) if reduce.onward else frozenset(axes) & frozenset(range(rank))


@dataclass
class Builder:
    """Collects the values of a program; equal values are one value."""

    values: list[Value] = field(default_factory=list)
    known: dict[Value, int] = field(default_factory=dict)

    def term(self, value: Value) -> Term:
        """Return the term for `value`, a new one only if no equal one is there."""
        if value not in self.known:
            self.known[value] = len(self.values)
            self.values.append(value)
        return Term(self, self.known[value])

    def constant(self, value: float | int | bool, dtype: int, shape: Shape = ()) -> Term:
        """Return a number as a term of element type `dtype`."""
        return self.term(Constant(types.as_python(value, dtype), dtype, shape))

    def apply(self, op: str, *args: Term | float, dtype: int | None = None) -> Term:
        """Return `op` applied to terms; plain numbers take the element type of the first term."""
        first = next(a for a in args if isinstance(a, Term))
        terms = [a if isinstance(a, Term) else self.constant(a, first.dtype) for a in args]
        return self.term(Apply(op, tuple(t.index for t in terms), first.dtype if dtype is None else dtype))

    def move(self, how: Movement, *args: Term) -> Term:
        """Return data of terms of one element type at other places."""
        if len({t.dtype for t in args}) != 1:
            raise UnsupportedError(f"data of types {' and '.join(types.name(t.dtype) for t in args)} moved together")
        return self.term(Move(how, tuple(t.index for t in args), args[0].dtype))


@dataclass(frozen=True)
class Term:
    """A value under construction, with arithmetic."""

    builder: Builder
    index: int

    @property
    def dtype(self) -> int:
        return self.builder.values[self.index].dtype

    @property
    def constant(self) -> Constant | None:
        """The constant that this term is, or None."""
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
        if len({types.computed(t) for t in both}) > 1:
            raise UnsupportedError(f"{op} of {' and '.join(types.name(t) for t in both)}")
        return self.builder.apply(op, left, right)


@dataclass(frozen=True)
class ShapeOf:
    """The extents of a value: what a Reshape may take as its target."""

    of: Term


Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
Known = Term | Array | ShapeOf


@dataclass(frozen=True)
class Node:
    """A node of the body with its operands resolved, as `language` reads it."""

    op_type: str
    opset: int
    builder: Builder
    operands: tuple[Known | None, ...]
    attributes: dict[str, object]
    outputs: int = 1
    """How many outputs the node lists."""

    def term(self, position: int) -> Term:
        """Return the operand at `position` as a term; it must be there."""
        found = self.optional(position)
        if found is None:
            raise UnsupportedError(f"{self.op_type} without its input {position}")
        return found

    def optional(self, position: int) -> Term | None:
        """Return the operand at `position` as a term, or None where it is left out."""
        operand = self.operands[position] if position < len(self.operands) else None
        if isinstance(operand, ShapeOf):
            raise UnsupportedError(f"{self.op_type} of a shape")
        return self._as_term(operand) if isinstance(operand, np.ndarray) else operand

    def shape_of(self, position: int) -> Term | None:
        """Return the value whose shape the operand at `position` is, or None where it is something else."""
        operand = self.operands[position] if position < len(self.operands) else None
        return operand.of if isinstance(operand, ShapeOf) else None

    def real(self, position: int) -> Term:
        """Return the operand at `position`, which must be of a floating-point type."""
        x = self.term(position)
        if not types.is_real(x.dtype):
            raise UnsupportedError(f"{self.op_type} of {types.name(x.dtype)}")
        return x

    def terms(self) -> tuple[Term, ...]:
        """Return all operands."""
        return tuple(self.term(i) for i in range(len(self.operands)))

    def integers(self, position: int) -> tuple[int, ...] | None:
        """Return a constant operand, which must be of integers, or None where it is left out."""
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
        """Return a number attribute. Attributes are float32 in ONNX, and so are their defaults."""
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


Handler = Callable[[Node], tuple[Term | ShapeOf, ...]]


def program(op: FusedOp, handlers: dict[tuple[str, str], Handler]) -> Program:
    """Return the expression program of the body of `op`, spelled out by `handlers` (by domain and op type).

    Raises `UnsupportedError` with the reason when the body holds something that no kernel can be made for.
    """
    for dtype in (*op.inputs, *op.outputs):
        types.require(dtype)
    builder = Builder()
    known: dict[str, Known] = {
        name: builder.term(Input(i, dtype))
        for i, (name, dtype) in enumerate(zip(op.body.input, op.inputs, strict=True))
    }
    for node in op.body.node:
        known.update(_results(node, known, builder, _opset(op), handlers))
    outputs = tuple(_output(name, known, dtype) for name, dtype in zip(op.body.output, op.outputs, strict=True))
    return Program(tuple(builder.values), outputs, op.inputs)


def _opset(op: FusedOp) -> int:
    version = next((o.version for o in op.body.opset_import if o.domain in ("", "ai.onnx")), None)
    if version is None:
        raise UnsupportedError("the body names no version of the default operator set")
    if version < 7:
        raise UnsupportedError(f"opset {version}, expected 7 or newer")
    return int(version)


def _results(
    node: onnx.NodeProto,
    known: dict[str, Known],
    builder: Builder,
    opset: int,
    handlers: dict[tuple[str, str], Handler],
) -> dict[str, Known]:
    if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
        return {node.output[0]: _constant(node)}
    domain = "" if node.domain == "ai.onnx" else node.domain
    handler = handlers.get((domain, node.op_type))
    if handler is None:
        raise UnsupportedError(f"no kernel for {domain + '.' if domain else ''}{node.op_type}")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    operands = tuple(known[i] if i else None for i in node.input)
    terms = handler(Node(node.op_type, opset, builder, operands, attributes, len(node.output)))
    wanted = [name for name in node.output if name]
    if len(node.output) > len(terms) and any(node.output[len(terms) :]):
        raise UnsupportedError(f"{node.op_type} with {len(wanted)} outputs")
    return {name: term for name, term in zip(node.output, terms, strict=False) if name}


def _constant(node: onnx.NodeProto) -> Array:
    attribute = node.attribute[0]
    value = onnx.helper.get_attribute_value(attribute)
    match attribute.name:
        case "value":
            types.require(value.data_type)
            return numpy_helper.to_array(value)
        case "value_float" | "value_floats":
            return np.asarray(value, np.float32)
        case "value_int" | "value_ints":
            return np.asarray(value, np.int64)
        case other:
            raise UnsupportedError(f"Constant with {other}")


def _output(name: str, known: dict[str, Known], dtype: int) -> Output:
    term = known[name]
    if isinstance(term, np.ndarray):
        raise UnsupportedError(f"output {name} is a constant")
    if isinstance(term, ShapeOf):
        raise UnsupportedError(f"output {name} is a shape")
    if term.dtype != dtype:
        raise UnsupportedError(
            f"output {name} is computed as {types.name(term.dtype)} and stored as {types.name(dtype)}"
        )
    return Output(term.index, dtype)
