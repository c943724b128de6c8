"""Depthwise convolutions on a real GPU, through CuPy alone: every body, layout, type and odd size against float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.images import PLAIN, RELU, RESIDUAL, SEVERAL, SILU, Case
from bench.cases.ops import BRAIN, FLOAT, HALF
from bench.kernels.launching import launcher
from onnxfuse import cuda
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.conv.variant import Band, DepthwiseVariant
from tests.gpu.test_kernels import DeviceBuffer, _gpu
from tests.support.kernels.depthwise_cases import cases

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]


def check(case: Case, aligned: bool = True, tuning: Variant | None = None, times: int = 1) -> None:
    """Fresh inputs, poisoned outputs between guards."""
    fused = case.op()
    inputs = case.inputs(np.random.default_rng(case.channels))
    plan = cuda.plan(fused, tuple(case.shapes()), aligned, cuda.arch_of(0), tuning)
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, fused.outputs, strict=True)]
    if plan.grid[0]:
        work = launcher(plan, [b.address for b in (*sources, *results)])
        for _ in range(times):
            work()
        cupy.cuda.Device(0).synchronize()
    ops.within_budget(fused, inputs, [r.read() for r in results])


@pytest.mark.parametrize("text", [PLAIN, SILU, RELU, RESIDUAL, SEVERAL])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)])
def test_the_layers_of_real_nets(text: str, dtype: int, channels_last: bool, kernel: int, stride: int) -> None:
    """Large enough for whole patches inside the image and for those at its edges."""
    pads = (kernel // 2,) * 4
    check(Case(text, dtype, channels_last, 2, 48, (29, 28), (kernel,) * 2, (stride,) * 2, pads=pads))


@pytest.mark.parametrize("text", [PLAIN, SILU, RESIDUAL, SEVERAL])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("band", [Band(7, 2, 7), Band(4, 4, 4), Band(2, 7, 2), Band(1, 1, 8)])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (7, 1)])
def test_the_tensor_cores(text: str, dtype: int, band: Band, kernel: int, stride: int) -> None:
    """Tiles that are smaller and larger than the image, channels that are no multiple of a block's sixteen."""
    pads = (kernel // 2,) * 4
    case = Case(text, dtype, True, 3, 72, (29, 28), (kernel,) * 2, (stride,) * 2, pads=pads)
    check(case, tuning=DepthwiseVariant(band=band))


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize(
    ("images", "channels", "size", "kernel"), [(1, 480, 14, 5), (32, 240, 28, 3), (3, 96, 57, 5), (2, 20, 112, 3)]
)
def test_the_mean_over_the_places_is_one_more_output(
    dtype: int, images: int, channels: int, size: int, kernel: int
) -> None:
    """Of images that a block has for itself, and of those that blocks share; launch after launch."""
    case = Case(SILU, dtype, True, images, channels, (size,) * 2, (kernel,) * 2, pads=(kernel // 2,) * 4, mean=1)
    check(case, times=3)


def test_the_layer_that_the_tensor_cores_are_for() -> None:
    """7 x 7 over large images, the sizes as the plan itself chooses them."""
    check(Case(SILU, HALF, True, 12, 96, (56, 56), (7, 7), pads=(3, 3, 3, 3)))


@settings(max_examples=60, deadline=None)
@given(case=cases(largest=40), aligned=st.booleans())
def test_any_depthwise_convolution(case: Case, aligned: bool) -> None:
    """Kernels, strides, pads, dilations, one and two dimensions, odd channels, any alignment."""
    check(case, aligned)
