"""Running sums on a real GPU: along rows of any length and across them."""

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BRAIN, DOUBLE, FLOAT, HALF, INT64
from tests.emulator.test_scan import WAYS, plain, running
from tests.gpu.test_kernels import check, pytestmark

__all__ = ["pytestmark"]


@pytest.mark.parametrize("attributes", WAYS)
@pytest.mark.parametrize("columns", [1, 7, 8, 31, 40, 197, 264, 1025, 4104, 100000])
@pytest.mark.parametrize("aligned", [True, False])
def test_rows_of_any_length(columns: int, attributes: str, aligned: bool) -> None:
    """One thread, a part of a warp, a warp, a block, a block that walks."""
    check(ops.op(running(-1, attributes), (HALF,) * 2, (HALF,), "scan"), [(37, columns), (columns,)], aligned)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("dtype", [BRAIN, FLOAT])
def test_element_types(dtype: int, axis: int) -> None:
    """Summed in float32."""
    check(ops.op(running(axis), (dtype,) * 2, (dtype,), "scan"), [(37, 3000, 40), (40,)])


@pytest.mark.parametrize("axis", [-1, -2])
def test_double(axis: int) -> None:
    """Whole numbers, whose sums are exact in any order: the truth of other doubles rounds, too."""
    check(plain(DOUBLE, axis), [(37, 3000, 40)], made=whole_numbers)


def whole_numbers(rng: np.random.Generator, _: int, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-50, 100, shape).astype(np.float64)


@pytest.mark.parametrize("attributes", WAYS)
@pytest.mark.parametrize("shape", [(5, 3), (3001, 40), (2, 1900, 3, 8), (130, 9, 4096), (2, 4097, 72)], ids=str)
def test_across_neighbours(shape: tuple[int, ...], attributes: str) -> None:
    """Threads that share a column and threads that have it alone."""
    axis = 0 if len(shape) == 2 else 1
    check(ops.op(running(axis, attributes), (FLOAT,) * 2, (FLOAT,), "scan"), [shape, shape[-1:]])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_whole_numbers_are_exact(axis: int) -> None:
    """However the work is shared out."""
    check(plain(INT64, axis), [(70, 1031, 66)])


@pytest.mark.parametrize("axis", [0, 1])
def test_an_output_may_lie_over_an_input(axis: int) -> None:
    """A thread reads its elements before it writes them."""
    check(ops.op(running(axis), (HALF,) * 2, (HALF,), "scan"), [(1000, 3001), (3001,)], over=0)
