"""Dynamic quantization on a real GPU: to the last bit DynamicQuantizeLinear of what the kernel before has written."""

import numpy as np
import pytest

from onnxfuse import cuda
from onnxfuse.model.fused import FusedOp
from tests.gpu.test_kernels import pytestmark
from tests.gpu.test_topk import run
from tests.support.kernels.dynamic import VALUES, alone, attention, drawn, norm, product, reference

__all__ = ["pytestmark"]


def check(op: FusedOp, inputs: list[np.ndarray], aligned: bool = True) -> None:
    """Run an op: its last outputs are those of DynamicQuantizeLinear of its first one, or of its input."""
    *others, s, z, y = run(op, inputs, aligned)
    for got, expected in zip((y, s, z), reference((others or inputs)[0]), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("shape", [(1,), (0, 4), (3, 5, 4), (128, 768), (1024, 3072), (33, 40001)], ids=str)
@pytest.mark.parametrize("aligned", [True, False])
def test_a_value(shape: tuple[int, ...], values: str, aligned: bool) -> None:
    check(*alone(np.asarray(VALUES[values](drawn(shape)), np.float32)), aligned)


@pytest.mark.parametrize("columns", [4, 31, 197, 768, 1025, 8192, 70000])
@pytest.mark.parametrize("rows", [1, 3, 1000, 9000])
def test_rows(rows: int, columns: int) -> None:
    """Rows of part of a warp, of warps, of blocks, and such that do not fit the registers."""
    if rows * columns > 2**27:
        pytest.skip("more than half a gigabyte")
    check(*norm(rows, columns))


@pytest.mark.parametrize("rows", [1, 33, 64, 200, 1000, 4096])
@pytest.mark.parametrize("columns", [16, 72, 320, 768, 3072])
def test_products(rows: int, columns: int) -> None:
    """By Hopper's kernel, which leaves the extremes of what its warps store, and by the others, which do not."""
    op, inputs = product(rows, columns)
    check(op, inputs)
    plan = cuda.plan(op, tuple(x.shape for x in inputs), True, cuda.arch_of(0))
    assert len(plan.then) == (1 if "wgmma" in plan.kernel.text else 2)


@pytest.mark.parametrize(
    ("batch", "queries", "keys"),
    [(8, 128, 128), (1, 128, 128), (40, 128, 128), (1, 40, 1000), (3, 1, 70), (2, 333, 50)],
)
def test_attention(batch: int, queries: int, keys: int) -> None:
    """Each warp leaves the extremes of its queries' results."""
    op, inputs = attention(batch, queries, keys)
    check(op, inputs)
    assert len(cuda.plan(op, tuple(x.shape for x in inputs), True, cuda.arch_of(0)).then) == 1
