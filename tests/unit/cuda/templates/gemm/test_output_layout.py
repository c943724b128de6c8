"""Where a product's cells go in an output that is written reshaped and transposed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxfuse.codegen.program.movement import Reshaped, Transposed
from onnxfuse.cuda.templates.gemm.output_layout import Stored, stored
from onnxfuse.symbolic.element_types import UnsupportedError


def places(found: Stored, m: int, n: int) -> np.ndarray:
    """What the kernel computes: for each cell its place in the output."""
    numbers = (np.arange(m)[:, None], np.arange(n)[None, :])
    total = np.zeros((m, n), np.int64)
    for number, (inner, middle, outer) in zip(numbers, (found.rows, found.columns), strict=True):
        above = number // inner.extent
        total = total + number % inner.extent * inner.step + above % middle.extent * middle.step
        total = total + above // middle.extent * outer.step
    return total


@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    columns=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    data=st.data(),
)
def test_each_cell_goes_where_numpy_puts_it(rows: list[int], columns: list[int], data: st.DataObject) -> None:
    perm = tuple(data.draw(st.permutations(range(len(rows) + len(columns)))))
    m, n = int(np.prod(rows)), int(np.prod(columns))
    found = stored((m, n), (Reshaped((*rows, *columns), False), Transposed(perm)))
    expected = np.arange(m * n).reshape(*rows, *columns).transpose(perm)
    assert found.shape == expected.shape
    at = np.empty(m * n, np.int64)
    at[places(found, m, n).reshape(-1)] = np.arange(m * n)
    np.testing.assert_array_equal(at, expected.reshape(-1))
    for beside, count in ((places(found, m, n), found.width), (places(found, m, n).T, found.height)):
        groups = beside.reshape(-1, count)
        assert (groups == groups[:, :1] + np.arange(count)).all()
        assert (groups[:, 0] % count == 0).all()


def test_an_output_may_be_reshaped_again() -> None:
    found = stored((6, 8), (Reshaped((2, 3, 2, 4), False), Transposed((0, 2, 1, 3)), Reshaped((4, -1), True)))
    assert found.shape == (4, 12)
    assert found.width == 4


@pytest.mark.parametrize(
    ("shape", "moves", "reason"),
    [
        ((6, 8), (Reshaped((4, 12), False), Transposed(None)), "cuts across the rows and columns"),
        ((6, 8), (Transposed(None), Transposed(None)), "transposed twice"),
        ((6, 8), (Transposed((0,)),), "Transpose by [0] of a value of rank 2"),
        ((2**16, 2**16), (Transposed(None),), "4294967296 elements"),
        (
            (16, 4),
            (Reshaped((2, 2, 2, 2, 4), False), Transposed((3, 2, 1, 0, 4))),
            "rows of a product that are written in 4",
        ),
    ],
)
def test_what_no_kernel_writes_is_refused_with_the_reason(
    shape: tuple[int, int], moves: tuple[Reshaped | Transposed, ...], reason: str
) -> None:
    with pytest.raises(UnsupportedError) as error:
        stored(shape, moves)
    assert reason in str(error.value)
