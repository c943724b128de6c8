"""Fused data movement on a real GPU, through CuPy alone: every family, alignment and element type against float64."""

import pytest

from bench.cases import moved, ops
from bench.cases.ops import BOOL, BRAIN, DOUBLE, FLOAT, HALF, INT32, INT64
from tests.gpu.test_kernels import check, pytestmark  # noqa: F401  (skips without a GPU)


@pytest.mark.parametrize("name", moved.small(HALF))
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT, DOUBLE])
def test_families(name: str, aligned: bool, dtype: int) -> None:
    """The body's values, and nothing written beside the outputs."""
    fused, shapes = moved.small(dtype)[name]
    check(fused, shapes, aligned)


@pytest.mark.parametrize("name", moved.large(HALF, 4))
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_families_of_many_waves(name: str, dtype: int) -> None:
    """Several vectors per thread, many tiles, tiles at the edge."""
    check(*moved.large(dtype, 4)[name])


@pytest.mark.parametrize("dtype", [BOOL, INT32, INT64])
@pytest.mark.parametrize("rows", [24, 13, 130])
def test_other_element_types(dtype: int, rows: int) -> None:
    """Bits are moved, whatever they mean; the zeros around a Pad are false."""
    text = f"""(x, z) => (y) {{ {moved.ints(p=(0, 1, 0, 2))} t = Transpose (x) c = Concat <axis = 1> (t, z)
      y = Pad (c, p) }}"""
    check(ops.op(text, (dtype,) * 2, (dtype,)), [(rows, 140), (140, 3)])
