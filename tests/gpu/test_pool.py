"""Pooling and linear interpolation on a real GPU, through CuPy alone, against float64."""

import numpy as np
import pytest
from hypothesis import assume, given, settings

from bench.cases import ops
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda import CENTRES
from tests.gpu.test_kernels import DeviceBuffer, _gpu, launch
from tests.support.kernels.pools import ALONE, BIAS_RELU, GATED, Pool, pools
from tests.support.kernels.resized import Resize

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]


def check(case: Pool | Resize, aligned: bool = True) -> None:
    """Fresh inputs, poisoned outputs between guards."""
    fused, inputs = case.op(), case.inputs(np.random.default_rng(case.channels))
    plan = cuda.plan(fused, tuple(case.shapes()), aligned, cuda.arch_of(0))
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, fused.outputs, strict=True)]
    launch(plan, [b.address for b in (*sources, *results)])
    cupy.cuda.Device(0).synchronize()
    ops.within_budget(fused, inputs, [r.read() for r in results])


@pytest.mark.parametrize("text", [ALONE, BIAS_RELU, GATED])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 1), (3, 2), (5, 1)])
def test_the_poolings_of_real_nets(text: str, kind: str, dtype: int, kernel: int, stride: int) -> None:
    pads = (kernel // 2,) * 4 if kernel % 2 else (0,) * 4
    check(Pool(kind, text, dtype, 3, 48, (29, 28), (kernel,) * 2, (stride,) * 2, pads=pads, first=kernel == 3))


def test_a_window_larger_than_the_image_sees_what_is_there() -> None:
    """One window, as ONNX Runtime has it: images shrink to a pixel before the last pools."""
    for size in ((3, 3), (2, 3), (3, 9)):
        check(Pool("MaxPool", ALONE, FLOAT, 2, 16, size, (4, 4), (3, 3)))
        check(Pool("MaxPool", BIAS_RELU, HALF, 2, 16, size, (4, 4), (3, 3), first=True))


@settings(max_examples=40, deadline=None)
@given(case=pools(largest=40))
def test_any_pooling(case: Pool) -> None:
    # onnx's reference takes the mean of a window that passes the image over places that do not exist, too.
    assume(not (case.ceil and case.kind == "AveragePool"))
    check(case)
    check(case, aligned=False)


@pytest.mark.parametrize("centre", CENTRES)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize(("scales", "channels"), [((2, 2), 64), ((0.5, 1.5), 12), ((3, 3), 7)])
def test_images_are_interpolated(centre: str, dtype: int, scales: tuple[float, float], channels: int) -> None:
    check(Resize(dtype, centre, scales, (28, 22), channels))
    check(Resize(dtype, centre, scales, (28, 22), channels, first=channels == 12), aligned=False)
