"""Convolutions of the direct template on a real GPU, through CuPy alone: every layout and odd size against float64."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.images import RESIDUAL, SILU
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.conv.variant import DirectVariant, Halo
from tests.gpu.test_kernels import DeviceBuffer, _gpu, launch
from tests.support.kernels.windows import TEXTS, Case, cases

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

STEM = Case(SILU, HALF, False, 3, 3, 64, (61, 59), (7, 7), strides=(2, 2), pads=(3, 3, 3, 3))
GROUPS = Case(SILU, HALF, True, 3, 16, 16, (29, 28), (3, 3), groups=6, pads=(1, 1, 1, 1))
SIGNAL = Case(SILU, HALF, True, 3, 32, 32, (1, 5003), (1, 11), dilations=(1, 3), pads=(0, 15, 0, 15))

NARROW = Case(SILU, HALF, True, 3, 160, 32, (61, 70), (3, 3), pads=(1, 1, 1, 1), beside=(32, 32, 32))


def check(case: Case, aligned: bool = True, tuning: Variant | None = None) -> None:
    """Fresh inputs, poisoned outputs between guards."""
    fused = case.op()
    inputs = case.inputs(np.random.default_rng(case.channels))
    plan = cuda.plan(fused, tuple(case.shapes()), aligned, cuda.arch_of(0), tuning)
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, fused.outputs, strict=True)]
    if plan.grid[0]:
        launch(plan, [b.address for b in (*sources, *results)])
        cupy.cuda.Device(0).synchronize()
    ops.within_budget(fused, inputs, [r.read() for r in results], case.cuts)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize(
    "case",
    [
        STEM, replace(STEM, kernel=(3, 3), filters=32, pads=(0, 0, 1, 1)), replace(STEM, kernel=(4, 4), strides=(4, 4)),
        replace(STEM, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1)), GROUPS,
        replace(GROUPS, channels=4, filters=4, groups=32), replace(GROUPS, channels=56, filters=56, strides=(2, 2)),
        replace(GROUPS, channels=24, filters=60, kernel=(1, 1), pads=(0, 0, 0, 0)),
        replace(GROUPS, channels=7, filters=9), replace(GROUPS, channels=30, filters=45, groups=1),
        NARROW, replace(NARROW, channels=192, filters=64), replace(NARROW, channels=100, beside=(21, 3), size=(7, 7)),
        replace(NARROW, channels=128, beside=(), size=(14, 14)), replace(NARROW, channels=36, beside=(), filters=36),
    ],
)  # fmt: skip
def test_the_layers_of_real_nets(text: str, dtype: int, case: Case) -> None:
    """First layers of ResNet, EfficientNet, ConvNeXt, VGG; groups of RegNet, ResNeXt, ShuffleNet; odd channels."""
    check(replace(case, text=text, dtype=dtype))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize(
    "case",
    [
        SIGNAL, replace(SIGNAL, filters=1, kernel=(1, 7), pads=(0, 9, 0, 9)), replace(SIGNAL, strides=(1, 3)),
        replace(SIGNAL, channels=16, filters=16, kernel=(1, 3), pads=(0, 3, 0, 3)),
        replace(SIGNAL, channels=6, filters=6, groups=5), replace(SIGNAL, channels=1, filters=40, images_last=False,
                                                                  dilations=(1, 1), strides=(1, 5)),
    ],
)  # fmt: skip
def test_signals(text: str, dtype: int, case: Case) -> None:
    """Layers of vocoders and of nets that read sound, in tiles of one row."""
    check(replace(case, text=text, dtype=dtype))


@pytest.mark.parametrize(
    "case",
    [STEM, GROUPS, SIGNAL, replace(GROUPS, text=RESIDUAL, channels=40, filters=40, groups=2), NARROW,
     replace(NARROW, channels=64, beside=())],
)  # fmt: skip
def test_every_candidate(case: Case) -> None:
    """All areas that are measured when tuning."""
    large = replace(case, images=7)
    for tuning in cuda.candidates(large.op(), tuple(large.shapes()), cuda.arch_of(0)):
        check(large, tuning=tuning)


@pytest.mark.parametrize(
    "halo",
    [
        Halo(4, 16, 32, 1, 1, 4, 1), Halo(8, 16, 32, 2, 1, 2, 1), Halo(16, 16, 32, 2, 1, 2, 1),
        Halo(8, 32, 32, 2, 1, 2, 1), Halo(28, 16, 32, 7, 1, 2, 1), Halo(16, 16, 64, 4, 1, 2, 1),
        Halo(8, 32, 64, 2, 1, 3, 1), Halo(16, 16, 24, 4, 1, 2, 1),
    ],
    ids=str,
)  # fmt: skip
def test_four_warps_multiply_together(halo: Halo) -> None:
    """Slices that are whole and not, windows of other sizes, filters that are no whole products, odd pointers."""
    if cuda.arch_of(0).name != "sm_90a":
        pytest.skip("made for Hopper")
    for case in (
        replace(NARROW, filters=halo.filters),
        replace(NARROW, channels=36, beside=(), filters=halo.filters - 8 + 4),
        replace(NARROW, text=RESIDUAL, channels=128, beside=(), filters=halo.filters, size=(14, 14), images=9),
        replace(NARROW, channels=48, beside=(), filters=halo.filters, kernel=(3, 5), pads=(2, 0, 1, 2)),
        replace(NARROW, channels=33, beside=(), filters=halo.filters, kernel=(2, 3)),
    ):
        check(case, tuning=DirectVariant(halo=replace(halo, filters=case.filters)))
    check(replace(NARROW, dtype=BRAIN, filters=halo.filters), aligned=False, tuning=DirectVariant(halo=halo))


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.integers(1, 80), min_size=2, max_size=5), filters=st.integers(1, 130), aligned=st.booleans(),
    dtype=st.sampled_from([HALF, BRAIN, FLOAT]), kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    size=st.tuples(st.integers(5, 50), st.integers(5, 70)), text=st.sampled_from(TEXTS),
)  # fmt: skip
def test_any_images_side_by_side(
    parts: list[int], filters: int, aligned: bool, dtype: int, kernel: tuple[int, int], size: tuple[int, int], text: str
) -> None:
    """One kernel reads the channels of all of them."""
    check(
        Case(text, dtype, True, 2, sum(parts), filters, size, kernel, pads=(1, 2, 3, 0), beside=(*parts[1:],)), aligned
    )


@settings(max_examples=60, deadline=None)
@given(case=cases(largest=40), aligned=st.booleans())
def test_any_convolution(case: Case, aligned: bool) -> None:
    """Kernels, strides, pads, dilations, groups, odd channels and filters, any alignment."""
    check(case, aligned)
