"""How much a node may compute before it is computed: products of constants that a file of 200 bytes asks for."""

import numpy as np
import onnx
import pytest

from onnxfuse.shapes.size_bounds import MOST_IN_A_PRODUCT, MOST_MULTIPLIED, result_elements

EINSUM, PRODUCT = 'y = Einsum <equation = "ij,jk->ik"> (a, b)', "y = MatMul (a, b)"


def elements(text: str, rows: int, terms: int, columns: int) -> int | None:
    """Return what is told of a product of such matrices, which take no memory."""
    a, b = (np.broadcast_to(np.float32(1), shape) for shape in ((rows, terms), (terms, columns)))
    return result_elements(onnx.parser.parse_node(text), {"a": a, "b": b})


@pytest.mark.parametrize(("text", "most"), [(EINSUM, MOST_MULTIPLIED), (PRODUCT, MOST_IN_A_PRODUCT)])
def test_a_product_of_so_many_multiplications_is_computed(text: str, most: int) -> None:
    """And one of more is not, however small its result is."""
    assert elements(text, 2, most // 4, 2) == 4
    assert elements(text, 2, most // 4 + 1, 2) is None
    assert elements(text, 2, 3, 5) == 10
