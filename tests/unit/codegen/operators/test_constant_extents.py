"""Known integers and extents are folded: selected, divided and joined; all else is computed."""

from typing import Any

import numpy as np
import pytest

from onnxfuse import ops
from onnxfuse.codegen.operators.constant_extents import folded
from onnxfuse.codegen.operators.node import BodyNode, ExtentList, Known, ShapeOf
from onnxfuse.codegen.program.builder import Builder, Term
from onnxfuse.codegen.program.movement import ExtentOf

BUILDER = Builder()
X, Y = Term(BUILDER, 0), Term(BUILDER, 1)


def result(op: str, *operands: Any) -> Known | None:
    """Return what a node of these operands is folded into."""
    return folded(BodyNode(op, 17, BUILDER, operands, {}))


def test_gathered_extents_are_read_from_the_value() -> None:
    """By their axes, in the order of the indices."""
    made = result(ops.Gather, ShapeOf(X), np.array([2, 0]))
    assert made == ExtentList((ExtentOf(0, 2), ExtentOf(0, 0)), (X,))
    assert result(ops.Gather, ShapeOf(X), np.array(1)) == ExtentList((ExtentOf(0, 1),), (X,))
    assert result(ops.Gather, X, np.array(1)) is None
    assert result(ops.Gather, ShapeOf(X), Y) is None


def test_a_divided_list_divides_numbers_and_extents() -> None:
    """Extents that are divided twice are divided by the product."""
    extents = ExtentList((ExtentOf(0, 1, by=2), 12), (X,))
    assert result(ops.Div, extents, np.array([3])) == ExtentList((ExtentOf(0, 1, by=6), 4), (X,))
    assert result(ops.Div, extents, np.array(1)) == extents


@pytest.mark.parametrize("divisor", [0, -2, [2, 3]])
def test_other_divisors_are_not_folded(divisor: Any) -> None:
    """Zero, negative ones, and several."""
    assert result(ops.Div, ExtentList((12,), (X,)), np.array(divisor)) is None


def test_joined_lists_keep_the_values_apart() -> None:
    """The extents of each list are of its own values, in order; numbers stay."""
    one, other = ExtentList((ExtentOf(0, 1), 7), (X,)), ExtentList((ExtentOf(0, 3),), (Y,))
    made = result(ops.Concat, np.array([5, 6]), one, np.array([8]), other)
    assert made == ExtentList((5, 6, ExtentOf(0, 1), 7, 8, ExtentOf(1, 3)), (X, Y))


def test_joined_constants_are_a_constant() -> None:
    """An array, as they were."""
    made = result(ops.Concat, np.array([5]), np.array([6, 7]))
    assert isinstance(made, np.ndarray)
    assert made.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    "operands", [(), (np.array([[1]]), np.array([[2]])), (np.array([1]), X), (np.array([1]), None)]
)
def test_what_is_no_list_is_not_joined(operands: tuple[Any, ...]) -> None:
    """No operands, a matrix, a computed value, an absent one."""
    assert result(ops.Concat, *operands) is None


def test_other_operators_are_computed() -> None:
    """Also of known integers."""
    assert result(ops.Add, np.array([1]), np.array([2])) is None
