"""Shapes of products and reductions, by NumPy's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from onnxfuse.ops.shapes import products
from onnxfuse.ops.shapes.extents import UnknownError
from onnxfuse.ops.shapes.node import Dims
from onnxfuse.symbolic.element_types import UnsupportedError


@dataclass
class Node:
    """A node of these shapes and attributes; axes are an attribute."""

    shapes: Sequence[Dims]
    attributes: dict[str, Any] = field(default_factory=dict)

    def shape(self, position: int) -> Dims:
        """Return the shape of an input."""
        return self.shapes[position]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def has(self, name: str) -> bool:
        """Return whether it is given."""
        return name in self.attributes

    def axes(self, name: str) -> tuple[int, ...]:
        """Return the axes."""
        return tuple(self.attributes[name])


def shape(function: Any, *shapes: Dims, **attributes: Any) -> Dims:
    """Return the shape of the only output."""
    (found,) = function(Node(shapes, attributes))
    return tuple(found)


@pytest.mark.parametrize(
    "shapes", [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((7, 1, 3, 4), (2, 4, 5)), ((4,), (4, 5)), ((3, 4), (4,)),
               ((4,), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((0, 4), (4, 5))],
)  # fmt: skip
def test_a_product_is_that_of_numpy(shapes: tuple[Dims, Dims]) -> None:
    """A vector is a row on the left, a column on the right, and gone from the result."""
    a, b = (np.zeros(s) for s in shapes)
    assert shape(products.matmul, *shapes) == np.matmul(a, b).shape


def test_factors_that_do_not_fit_are_refused() -> None:
    """Other extents are, scalars are not known."""
    with pytest.raises(UnsupportedError, match="a product with 4 in one axis and 5 in the other"):
        shape(products.matmul, (3, 4), (5, 6))
    with pytest.raises(UnsupportedError, match="a product of ranks 1 and 2, expected 2 or more"):
        products.multiplied((4,), (4, 5))
    for shapes in (((), (4,)), ((4,), ())):
        with pytest.raises(UnknownError):
            shape(products.matmul, *shapes)


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("right", [0, 1])
def test_a_gemm_transposes_its_factors(left: int, right: int) -> None:
    """Each by its attribute."""
    a, b = ((4, 3) if left else (3, 4)), ((5, 4) if right else (4, 5))
    assert shape(products.gemm, a, b, transA=left, transB=right) == (3, 5)
    given = {name: 1 for name, is_set in (("transA", left), ("transB", right)) if is_set}
    assert shape(products.gemm, a, b, **given) == (3, 5)


def test_a_packed_weight_says_its_sizes() -> None:
    """K terms and N columns."""
    assert shape(products.packed, (2, 3, 4), K=4, N=7) == (2, 3, 7)
    with pytest.raises(UnsupportedError, match=r"a product of shape \(2, 3\) by a weight of 4 terms"):
        shape(products.packed, (2, 3), K=4, N=7)
    with pytest.raises(UnsupportedError, match=r"a product of shape \(\)"):
        shape(products.packed, (), K=4, N=7)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4))), ("ij,jk", ((2, 3), (3, 4))), ("bi j, b jk -> kbi", ((5, 2, 3), (5, 3, 4))),
        ("ij->", ((2, 3),)), ("ba", ((2, 3),)), ("ij,ij->ij", ((1, 3), (2, 3))),
    ],
)  # fmt: skip
def test_an_einsum_is_that_of_numpy(equation: str, shapes: tuple[Dims, ...]) -> None:
    """Without an arrow the result has the letters that occur once, in order."""
    assert (
        shape(products.einsum, *shapes, equation=equation.encode()) == np.einsum(equation, *map(np.zeros, shapes)).shape
    )


@pytest.mark.parametrize(("equation", "shapes"), [("...i", ((2, 3),)), ("ij", ((2,),)), ("ij->ik", ((2, 3),))])
def test_axes_without_letters_are_not_known(equation: str, shapes: tuple[Dims, ...]) -> None:
    """Nor a result of others."""
    with pytest.raises(UnknownError):
        shape(products.einsum, *shapes, equation=equation.encode())


@pytest.mark.parametrize(
    ("attributes", "result"),
    [
        ({"axes": [1]}, (2, 1, 4)), ({"axes": [-1, 0], "keepdims": 0}, (3,)), ({}, (1, 1, 1)), ({"keepdims": 0}, ()),
        ({"axes": [], "noop_with_empty_axes": 1}, (2, 3, 4)), ({"axes": []}, (1, 1, 1)),
        ({"axes": [1], "keepdims": 2}, (2, 4)),
    ],
)  # fmt: skip
def test_a_reduction_keeps_or_drops_its_axes(attributes: dict[str, Any], result: Dims) -> None:
    """All of them where none are named, unless the node says that it does nothing then."""
    assert shape(products.reduction, (2, 3, 4), **attributes) == result


def test_axes_that_occur_twice_are_refused() -> None:
    """Also counted from the end."""
    with pytest.raises(UnsupportedError, match="a reduction along axes"):
        shape(products.reduction, (2, 3), axes=[1, -1])


@pytest.mark.parametrize(
    ("attributes", "result"), [({}, (1, 3)), ({"axis": -1}, (2, 1)), ({"axis": 1, "keepdims": 0}, (2,))]
)
def test_a_choice_is_along_one_axis(attributes: dict[str, Any], result: Dims) -> None:
    """The first by default."""
    assert shape(products.chosen, (2, 3), **attributes) == result
