"""Operands and attributes of a node in a body: what is there, of which type, and the refusals of anything else."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.codegen.operators.node import BodyNode, ExtentList, Handlers, ShapeOf, handles
from onnxfuse.codegen.program.builder import Builder, Term
from onnxfuse.codegen.program.program import Input, Reduce
from onnxfuse.ops import Add, FusedMatMul, Relu
from onnxfuse.ops.scalar import Kind
from onnxfuse.symbolic.element_types import UnsupportedError

BUILDER = Builder()
X, N, B = (BUILDER.term(Input(at, t)) for at, t in enumerate((TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL)))


def node(*operands: Any, **attributes: Any) -> BodyNode:
    """Return a node of these operands."""
    return BodyNode("Op", 17, BUILDER, operands, attributes)


def refused(call: Any, message: str) -> None:
    """Check that a call is refused with a message."""
    with pytest.raises(UnsupportedError, match=message):
        call()


def test_operands_are_terms_or_absent() -> None:
    """A constant of one element is one, too; a larger one and a shape are none."""
    one = node(X, None, np.array([[2.5]], np.float32), ShapeOf(N), np.array([1, 2]), ExtentList((), ()))
    assert (one.term(0), one.optional(1), one.optional(9)) == (X, None, None)
    constant = one.term(2)
    assert (constant.literal, constant.dtype) == (2.5, TensorProto.FLOAT)
    assert [one.shape_of(i) for i in (0, 3, 9)] == [None, N, None]
    assert node(X, N).terms() == (X, N)
    refused(lambda: one.term(1), "Op without its input 1")
    for position in (3, 5):
        refused(lambda position=position: one.optional(position), "Op of a shape")
    refused(lambda: one.optional(4), r"a constant of shape \[2\] inside the body, expected one element")


def test_kinds_of_operands_are_checked() -> None:
    """With what was expected, if that is one kind."""
    one = node(X, N, B)
    assert (one.real(0), one.term(1, Kind.INTEGER, Kind.REAL)) == (X, N)
    refused(lambda: one.real(1), "Op of INT64$")
    refused(lambda: one.term(0, Kind.INTEGER), "Op of FLOAT, expected integers")
    refused(lambda: one.term(0, Kind.BOOLEAN), "Op of FLOAT, expected BOOL")
    refused(lambda: one.term(2, Kind.REAL, Kind.INTEGER), "Op of BOOL$")


def test_operands_that_must_be_alike() -> None:
    """All of them, or some from one on."""
    assert node(X, X).alike(Kind.REAL) == (X, X)
    assert node(N, X, X).alike(first=1) == (X, X)
    assert node(N, X, X, B).alike(first=1, count=2) == (X, X)
    assert node(X, N).alike(count=1) == (X,)
    refused(lambda: node(X, N).alike(), "Op of FLOAT and INT64")
    refused(lambda: node(X, X).alike(Kind.INTEGER), "Op of FLOAT, expected integers")


def test_constants_and_attributes() -> None:
    """Attributes are float32 in ONNX, and so are their defaults."""
    one = node(X, np.array([[3], [4]]), np.array(0.5), None, a=2, b=0.1, c=b"text", d=[1])
    assert (one.integers(1), one.integers(3), one.integers(9)) == ((3, 4), None, None)
    refused(lambda: one.integers(2), "Op whose input 2 is float64, expected integers")
    for position in (0, 9):
        refused(
            lambda position=position: one.constant(position), f"Op whose input {position} is not a constant of the body"
        )
    assert [one.number("a", 1), one.number("b", 1), one.number("e", 7)] == [2, 0.1, 7]
    assert one.number("e", 0.1) == float(np.float32(0.1)) != 0.1
    refused(lambda: one.number("d", 0), r"Op with d=\[1\], expected a number")
    assert [one.text("c", ""), one.text("e", "default")] == ["text", "default"]


def test_reductions_and_handlers() -> None:
    """A reduction keeps the type; a handler is entered by domain and name."""
    made = node(X).over("sum", X, -1, onward=True)
    assert isinstance(made, Term)
    assert BUILDER.values[made.index] == Reduce("sum", X.index, (-1,), True, TensorProto.FLOAT)
    table: Handlers = {}
    handler = handles(table, Add, Relu, FusedMatMul)(lambda one: (one.term(0),))
    assert table == {("", "Add"): handler, ("", "Relu"): handler, ("com.microsoft", "FusedMatMul"): handler}
