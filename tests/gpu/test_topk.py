"""TopK along rows on a real GPU: against Python's own sort, with ties, NaN and infinities."""

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BOOL, BRAIN, DOUBLE, FLOAT, HALF, INT64
from bench.cases.rows import topk
from onnxfuse import cuda
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.topk.variant import TopKVariant
from onnxfuse.model.fused import FusedOp
from tests.emulator.test_topk import SMALLEST, TYPES, first, numbers, same
from tests.gpu.test_kernels import DeviceBuffer, cupy, launch, pytestmark

__all__ = ["pytestmark"]


def run(
    fused: FusedOp, inputs: list[np.ndarray], aligned: bool = True, tuning: Variant | None = None
) -> list[np.ndarray]:
    """Return the outputs of a launch, twice: what one leaves in scratch memory is nothing to the next."""
    plan = cuda.plan(fused, tuple(x.shape for x in inputs), aligned, cuda.arch_of(0), tuning)
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, fused.outputs, strict=True)]
    for _ in range(2):
        launch(plan, [b.address for b in (*sources, *results)])
    cupy.cuda.Device(0).synchronize()
    assert all(s.read().tobytes() == x.tobytes() for s, x in zip(sources, inputs, strict=True)), "an input was changed"
    return [r.read() for r in results]


def check(
    k: int, dtype: int, x: np.ndarray, largest: bool = True, aligned: bool = True, tuning: Variant | None = None
) -> None:
    values, indices = run(topk(k, dtype, "" if largest else SMALLEST), [x], aligned, tuning)
    expected = first(x, k, largest)
    np.testing.assert_array_equal(indices, expected)
    same(values, np.take_along_axis(x, expected, -1))


@pytest.mark.parametrize("k", [1, 2, 8, 31, 32])
@pytest.mark.parametrize("shape", [(3, 32), (2000, 64), (257, 197), (70, 1000), (33, 4104), (3, 50257)], ids=str)
@pytest.mark.parametrize(("largest", "aligned"), [(True, True), (False, False)])
def test_rows_of_any_length(k: int, shape: tuple[int, int], largest: bool, aligned: bool) -> None:
    """A warp for each row, warps that share one, blocks that share one."""
    check(k, FLOAT, numbers(FLOAT, shape), largest, aligned)
    check(k, FLOAT, numbers(FLOAT, shape, ties=True), largest, aligned)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("largest", [True, False])
def test_element_types(dtype: int, largest: bool) -> None:
    """All that TopK knows, many elements equal; few rows that blocks share, and many."""
    for shape in ((900, 300), (2, 40000)):
        check(20, dtype, numbers(dtype, shape, ties=True), largest)


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT, DOUBLE])
@pytest.mark.parametrize("largest", [True, False])
def test_nan_infinities_and_zeros(dtype: int, largest: bool) -> None:
    """NaN is above infinity; -0 and 0 are equal, and leave as they came."""
    x = numbers(dtype, (64, 500))
    x[:, ::50], x[:, 1::70], x[:, 2::90] = np.nan, np.inf, -np.inf
    x[1], x[2] = 0, np.nan
    x[1, ::3] = -x[1, ::3]
    check(32, dtype, x, largest)


@pytest.mark.parametrize("order", [1, -1, 0])
def test_no_order_of_the_input_is_wrong(order: int) -> None:
    """Each element ahead of all before it, none, and none but the first."""
    check(32, FLOAT, (order * np.arange(200_000)).astype(np.float32).reshape(2, -1))


@pytest.mark.parametrize("tuning", [*(TopKVariant(topk_warps=n) for n in (1, 2, 4, 8)),
                                    *(TopKVariant(topk_splits=n) for n in (2, 4, 8, 16, 32))], ids=str)  # fmt: skip
def test_variants(tuning: TopKVariant) -> None:
    """Each computes the same."""
    check(17, HALF, numbers(HALF, (37, 3001), ties=True), tuning=tuning)
    check(17, INT64, numbers(INT64, (5, 300)), tuning=tuning)


def test_a_mask_before() -> None:
    """What is computed on the way is an output, too."""
    text = """(x, m) => (t, v, i) { k = Constant <value_ints = [5]> () l = Constant <value = float {-10000}> ()
      t = Where (m, x, l) v, i = TopK (t, k) }"""
    fused = ops.op(text, (FLOAT, BOOL), (FLOAT, FLOAT, INT64), "topk")
    x, mask = numbers(FLOAT, (40, 3, 1000)), ops.random(np.random.default_rng(1), BOOL, (40, 1, 1000))
    masked, values, indices = run(fused, [x, mask])
    wanted = np.where(mask, x, np.float32(-10000))
    expected = first(wanted, 5, True)
    np.testing.assert_array_equal(masked, wanted)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(wanted, expected, -1))
