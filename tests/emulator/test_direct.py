"""The direct template: a body taken apart, the plan for each size, and the kernel run by the host's compiler."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.images import PLAIN, RESIDUAL, SILU
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.conv.variant import Area, DirectVariant
from onnxfuse.support.errors import KernelError
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200
from tests.support.arches import on
from tests.support.kernels.windows import TEXTS, Case, cases

STEM = Case(SILU, HALF, False, 2, 3, 64, (19, 21), (7, 7), strides=(2, 2), pads=(3, 3, 3, 3))
GROUPS = Case(SILU, HALF, True, 2, 16, 16, (9, 10), (3, 3), groups=4, pads=(1, 1, 1, 1))
SIGNAL = Case(SILU, HALF, True, 2, 32, 32, (1, 77), (1, 5), dilations=(1, 3), pads=(0, 6, 0, 6))


def planned(case: Case, tuning: Variant | None = None, aligned: bool = True) -> LaunchPlan:
    return cuda.plan(case.op(), tuple(case.shapes()), aligned, H200, tuning)


def check(case: Case, tuning: Variant | None = None, aligned: bool = True) -> LaunchPlan:
    """Assert that the kernel gives the body within the budget, of the very shape that onnx gives."""
    fused = case.op()
    inputs = case.inputs(np.random.default_rng(case.channels))
    plan = planned(case, tuning, aligned)
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned)
    ops.within_budget(fused, inputs, got, case.cuts)
    return plan


# ---- numbers


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("case", [STEM, GROUPS], ids=["stem", "groups"])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_the_kernel_gives_the_body(text: str, case: Case, dtype: int) -> None:
    check(replace(case, text=text, dtype=dtype))


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize(
    "case",
    [
        Case(SILU, HALF, True, 2, 1, 1, (700, 1), (256, 1), strides=(2, 1)),
        Case(SILU, HALF, True, 2, 8, 8, (5, 50), (3, 39), pads=(1, 19, 1, 19)),
        Case(SILU, HALF, True, 2, 32, 1, (9, 20), (7, 3), pads=(3, 1, 3, 1)),
    ],
    ids=["a resampling", "a wide window", "one filter"],
)
def test_large_windows_of_few_channels_and_filters(case: Case, dtype: int) -> None:
    check(replace(case, dtype=dtype))


@settings(max_examples=8, deadline=None)
@given(case=cases(largest=12), aligned=st.booleans())
def test_any_convolution(case: Case, aligned: bool) -> None:
    """Kernels, strides, pads, dilations, groups, odd channels and filters, any alignment, any type and layout."""
    check(case, aligned=aligned)


@pytest.mark.parametrize(
    "area", [Area(2, 8, 1, 64, 1), Area(4, 16, 1, 32, 2), Area(8, 8, 1, 64, 2), Area(2, 32, 1, 96, 4)]
)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_any_area_gives_the_same(area: Area, stride: int) -> None:
    """Smaller and larger than the image, all filters at once or a few."""
    check(replace(STEM, filters=64 if area.filters < 96 else 96, strides=(2, stride)), DirectVariant(area=area))


@pytest.mark.parametrize(
    "area", [Area(1, 16, 1, 32, 1), Area(1, 64, 1, 32, 2), Area(1, 128, 1, 64, 2), Area(2, 8, 1, 32, 1)]
)
@pytest.mark.parametrize("images_last", [True, False])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_signals_in_tiles_of_one_row(area: Area, images_last: bool, stride: int, dtype: int) -> None:
    """Smaller and larger than the signal, of planes and of pixels, an odd stride among them."""
    dilations = (1, 3 if images_last else 1)
    case = replace(SIGNAL, images_last=images_last, dtype=dtype, strides=(1, stride), dilations=dilations)
    check(replace(case, text=RESIDUAL, filters=64, channels=32 if images_last else 3), DirectVariant(area=area))


@pytest.mark.parametrize("case", [SIGNAL, replace(SIGNAL, groups=3, channels=4, filters=6), replace(SIGNAL, filters=1)])
def test_a_signal_leaves_no_row_of_a_product_idle(case: Case) -> None:
    """A tile of two rows would compute one of them for nothing."""
    assert "constexpr int TILE_ROWS = 1;" in check(case).kernel.text
    assert "constexpr int TILE_ROWS = 2;" in planned(replace(case, size=(2, 77))).kernel.text


@pytest.mark.parametrize("channels", [1, 3, 4, 6, 8, 40])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_any_number_of_groups_in_a_block(channels: int, groups: int) -> None:
    """The last block has fewer groups than the others."""
    check(replace(GROUPS, channels=channels, groups=5, filters=24), DirectVariant(area=Area(4, 8, groups, 24, 1)))


@pytest.mark.parametrize("case", [STEM, replace(STEM, strides=(1, 1), kernel=(3, 3)), GROUPS], ids=["7", "3", "groups"])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_infinities_stay_where_they_are_seen(case: Case, dtype: int) -> None:
    """An infinity reaches the outputs whose windows hold it, and makes no neighbour NaN."""
    made = replace(case, text=PLAIN, dtype=dtype)
    inputs = made.inputs(np.random.default_rng(0))
    inputs[0].reshape(-1)[[5, 77, 301]] = np.inf
    inputs[1] = np.abs(inputs[1]) + np.array(0.25, inputs[1].dtype)
    got = emulate.run(planned(made), inputs, [ops.NUMPY[dtype]])
    exact = ops.truth(made.op(), inputs)
    assert np.isinf(got[0]).any()
    np.testing.assert_array_equal(np.isinf(got[0]), np.isinf(exact[0]))
    assert not np.isnan(got[0]).any()


@pytest.mark.parametrize("case", [STEM, GROUPS], ids=["planes", "pixels"])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_windows_that_do_not_fit_are_computed_plainly(case: Case, dtype: int) -> None:
    """Far apart or many channels: whatever the rule lets through has a kernel."""
    far = replace(case, dtype=dtype, size=(141, 3), kernel=(2, 2), dilations=(140, 1), pads=(0, 0, 0, 0))
    plan = check(
        replace(far, channels=8, strides=(1, 60), pads=(0, 50, 0, 50)) if case is STEM else replace(far, channels=700)
    )
    assert any(s.file == "conv/direct_plain.cu" for s in plan.kernel.sections)


# ---- sizes


@pytest.mark.parametrize(("images", "size", "filters"), [(0, (9, 9), 8), (2, (0, 9), 8), (2, (9, 9), 8)])
def test_nothing_to_compute_launches_nothing(images: int, size: tuple[int, int], filters: int) -> None:
    """No images, or windows that fit nowhere."""
    case = replace(STEM, images=images, size=size, filters=filters, kernel=(12, 3), pads=(1, 1, 1, 1), strides=(1, 1))
    shapes = [tuple(max(n, 0) for n in shape) for shape in case.shapes()]
    plan = cuda.plan(case.op(), tuple(shapes), True, H200)
    assert plan.grid[0] == 0
    assert math.prod(plan.output_shapes[0]) == 0


def test_another_batch_is_the_same_kernel() -> None:
    """What depends on the batch is passed by value: a model with a dynamic batch compiles once it is large."""
    few, many = (planned(replace(STEM, images=n, size=(224, 224))) for n in (32, 64))
    assert few.kernel == many.kernel
    assert few.parameters != many.parameters


def test_few_outputs_take_small_areas() -> None:
    """So that each multiprocessor has one."""
    grids = {n: planned(replace(STEM, images=n, size=(224, 224))).grid[0] for n in (1, 32)}
    assert grids[1] > 90
    assert grids[32] <= 2 * H200.sm_count


@pytest.mark.parametrize("case", [STEM, GROUPS, replace(GROUPS, channels=56, filters=56, groups=2), SIGNAL])
def test_candidates_are_different_and_have_plans(case: Case) -> None:
    """The plan's own choice is among them."""
    shapes = tuple(case.shapes())
    found = cuda.candidates(case.op(), shapes, H200)
    assert len(found) == len({cuda.plan(case.op(), shapes, True, H200, t).kernel for t in found}) > 3


# ---- refusals

TO, BACK = "i = Transpose <perm = [0,3,1,2]> (x)", "Transpose <perm = [0,2,3,1]>"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(x, w) => (y) { y = Conv(x, w) }", "whose results do not have their channels last"),
        (f"(x, w) => (y) {{ l = {BACK} (x) i = Transpose <perm = [0,3,1,2]> (l) c = Conv <group = 2> (i, w) "
         f"y = {BACK} (c) }}", "groups of images that have their channels first"),
        (f"(x, w) => (y) {{ l = {BACK} (x) i = Transpose <perm = [0,3,1,2]> (l) c = Conv <dilations = [1,2]> (i, w) "
         f"y = {BACK} (c) }}", "columns further apart"),
        (f"(x, w) => (y) {{ {TO} v = Transpose <perm = [2,3,0,1]> (w) c = Conv (i, v) y = {BACK} (c) }}",
         "weights that lie as those of depthwise"),
    ],
)  # fmt: skip
def test_what_no_kernel_fits_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert reason in str(cuda.supports(ops.op(text, (HALF,) * 2, (HALF,), "direct")))


def test_other_gpus_keep_the_body_and_exact_float32_where_windows_slide_by_one_pixel() -> None:
    assert cuda.supports(STEM.op(), lambda: H200) is None
    assert cuda.supports(STEM.op(), lambda: Arch("sm_80", 108)) is None
    for other in ("sm_75", "sm_89", "sm_100"):
        refusal = f"is made for sm_80, sm_87 and sm_90, not for {other}"
        assert refusal in str(cuda.supports(STEM.op(), on(Arch(other, 108))))
    assert cuda.supports(replace(STEM.op(), tf32=False), lambda: H200) is None
    exact = replace(replace(STEM, dtype=FLOAT).op(), tf32=False)
    assert cuda.supports(exact, lambda: H200) is None
    sliding = replace(STEM, dtype=FLOAT, images_last=True, strides=(1, 1), kernel=(3, 3), channels=32)
    assert "use_tf32 is 0" in str(cuda.supports(replace(sliding.op(), tf32=False), lambda: H200))


def test_an_area_that_does_not_fit_is_refused_with_the_reason() -> None:
    with pytest.raises(KernelError, match="bytes of shared memory, expected at most"):
        planned(replace(GROUPS, channels=400, filters=64, groups=1), DirectVariant(area=Area(16, 32, 1, 64, 1)))


# ---- the compiler


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize(
    "case",
    [STEM, replace(STEM, kernel=(3, 3), filters=32), GROUPS, replace(GROUPS, text=RESIDUAL, channels=4, filters=4)],
)
def test_kernels_compile_without_spills(dtype: int, case: Case) -> None:
    """Of large images, as they are planned for."""
    compiles_without_spills(planned(replace(case, dtype=dtype, images=32, size=(112, 112))))


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("taps", [3, 7, 11])
def test_kernels_of_signals_compile_without_spills(dtype: int, taps: int) -> None:
    """Of a vocoder's layers: channels that go on for tens of thousands of places."""
    case = replace(SIGNAL, text=RESIDUAL, dtype=dtype, images=8, size=(1, 32768), kernel=(1, taps))
    compiles_without_spills(planned(case))


def compiles_without_spills(plan: LaunchPlan) -> None:
    cubin, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert cubin.startswith(b"\x7fELF")
    assert "0 bytes spill stores" in log
    assert plan.shared_bytes <= H200.shared_bytes
