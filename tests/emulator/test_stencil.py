"""The depthwise template: a body taken apart, the plan for each size, and both kernels run by the host's compiler."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.images import PLAIN, RELU, RESIDUAL, SEVERAL, SILU, Case
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.conv import costs
from onnxfuse.cuda.templates.conv.convolution import MOST_TAPS
from onnxfuse.cuda.templates.conv.variant import Band, DepthwiseVariant, Patch
from onnxfuse.support.errors import KernelError
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels.depthwise_cases import cases

A100 = Arch("sm_80", 108)
IMAGE = Case(SILU, HALF, True, 2, 24, (13, 19), (3, 3), pads=(1, 1, 1, 1))


def planned(case: Case, tuning: Variant | None = None, aligned: bool = True, arch: Arch = H200) -> LaunchPlan:
    return cuda.plan(case.op(), tuple(case.shapes()), aligned, arch, tuning)


def on_tensor_cores(plan: LaunchPlan) -> bool:
    return any(s.file == "conv/stencil_band.cu" for s in plan.kernel.sections)


def check(case: Case, tuning: Variant | None = None, aligned: bool = True) -> LaunchPlan:
    """Assert that the kernel gives the body within the budget, of the very shape that onnx gives."""
    fused = case.op()
    inputs = case.inputs(np.random.default_rng(case.channels))
    plan = planned(case, tuning, aligned)
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned)
    ops.within_budget(fused, inputs, got)
    return plan


# ---- numbers


@pytest.mark.parametrize("text", [PLAIN, SILU, RELU, RESIDUAL, SEVERAL])
@pytest.mark.parametrize("channels_last", [True, False])
def test_the_kernel_gives_the_body(text: str, channels_last: bool) -> None:
    check(Case(text, HALF, channels_last, 2, 6, (9, 8), (3, 3), pads=(1, 1, 1, 1)))


@settings(max_examples=15, deadline=None)
@given(case=cases(largest=12), aligned=st.booleans())
def test_any_depthwise_convolution(case: Case, aligned: bool) -> None:
    """Kernels, strides, pads, dilations, one and two dimensions, odd channels, any alignment, any type and layout."""
    check(case, aligned=aligned)


@settings(max_examples=10, deadline=None)
@given(
    case=cases(largest=12), groups=st.integers(1, 4),
    band=st.builds(Band, strips=st.integers(1, 3), segments=st.integers(1, 4), rows=st.integers(1, 3)),
)  # fmt: skip
def test_any_depthwise_convolution_on_tensor_cores(case: Case, groups: int, band: Band) -> None:
    """The same, whatever tile a block takes: one that the image cuts short, or several of an image."""
    made = replace(
        case, channels_last=True, channels=8 * groups, dtype=HALF if case.dtype == FLOAT else case.dtype, mean=None
    )
    assume(on_tensor_cores(planned(made, DepthwiseVariant(band=band))))
    check(made, DepthwiseVariant(band=band))


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [(3, 1, 1), (5, 1, 1), (7, 1, 1), (3, 2, 1), (5, 2, 1), (7, 2, 1), (3, 1, 2), (4, 3, 1)],
)
@pytest.mark.parametrize("packed", [True, False])
def test_the_tensor_cores_take_every_window(dtype: int, kernel: int, stride: int, dilation: int, packed: bool) -> None:
    """Strides and dilations are zeros between the weights of the banded matrix."""
    case = replace(
        IMAGE, dtype=dtype, kernel=(kernel,) * 2, strides=(stride,) * 2, dilations=(dilation,) * 2,
        pads=(kernel // 2, kernel // 2, 1, 2), packed=packed,
    )  # fmt: skip
    assert on_tensor_cores(check(case, DepthwiseVariant(band=Band(2, 2, 2))))


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_infinities_reach_only_the_outputs_that_see_them(dtype: int, stride: int) -> None:
    """The banded matrix of the tensor cores multiplies with zeros: 0 times an infinity is not part of the sum.

    Without dilations, for which onnx's reference multiplies with zeros itself.
    """
    case = replace(IMAGE, text=PLAIN, dtype=dtype, kernel=(5, 5), strides=(stride,) * 2)
    inputs = case.inputs(np.random.default_rng(0))
    inputs[0][0, 6, 9, :] = np.inf
    inputs[0][1, 2, 3, 5:9] = np.nan
    plan = planned(case, DepthwiseVariant(band=Band(2, 2, 2)))
    assert on_tensor_cores(plan)
    got = emulate.run(plan, inputs, [ops.NUMPY[dtype]])
    assert np.isfinite(got[0].astype(np.float32)).any()
    ops.within_budget(case.op(), inputs, got)


@pytest.mark.parametrize("patch", [Patch(1, 1, 1, 32), Patch(4, 4, 2, 128), Patch(2, 7, 4, 64), Patch(3, 2, 8, 128)])
@pytest.mark.parametrize("channels", [1, 6, 24])
def test_any_patch_gives_the_same(patch: Patch, channels: int) -> None:
    """Vectors of channels are as wide as divides the channels, whatever was asked for."""
    check(replace(IMAGE, channels=channels), DepthwiseVariant(patch=patch))


@pytest.mark.parametrize("columns", [8, 14, 15])
@pytest.mark.parametrize("left", [0, 1, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_vectors_of_columns_lie_on_their_own_boundaries(columns: int, left: int, stride: int) -> None:
    """Channels first, any padding on the left shifts what a thread needs against the vectors that it reads."""
    case = Case(RESIDUAL, HALF, False, 2, 3, (6, columns), (3, 5), (stride,) * 2, pads=(1, left, 0, 2))
    check(case, DepthwiseVariant(patch=Patch(2, 4, 1, 64)))


@pytest.mark.parametrize(
    ("text", "channels", "patch", "meet"),
    [(SILU, 24, None, False), (SEVERAL, 6, Patch(1, 1, 2, 32), True), (SILU, 40, Patch(3, 3, 2, 32), True)],
)
def test_the_mean_over_the_places_is_one_more_output(text: str, channels: int, patch: Patch | None, meet: bool) -> None:
    """Of images that one block has for itself, and of those that blocks share: the last one to come adds up."""
    plan = check(replace(IMAGE, text=text, channels=channels, mean=1), DepthwiseVariant(patch=patch))
    assert (plan.scratch_bytes > 0) == meet


def test_a_mean_over_no_places_is_refused() -> None:
    case = replace(IMAGE, size=(0, 5), pads=(0, 0, 0, 0), mean=1)
    with pytest.raises(KernelError, match="a mean over no places"):
        cuda.plan(case.op(), tuple((2, 0, 5, 24) if s[1:3] == (0, 5) else s for s in case.shapes()), True, H200)


# ---- sizes


@pytest.mark.parametrize("text", [SILU, RESIDUAL])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    ("images", "channels", "size"), [(0, 8, (5, 5)), (2, 0, (5, 5)), (2, 8, (0, 5)), (2, 8, (1, 1))]
)
def test_nothing_to_compute_launches_nothing(
    text: str, channels_last: bool, images: int, channels: int, size: tuple[int, int]
) -> None:
    """No images, no channels, or windows that fit nowhere."""
    case = Case(text, HALF, channels_last, images, channels, size, (3, 3))
    shapes = [tuple(max(n, 0) for n in shape) for shape in case.shapes()]
    plan = cuda.plan(case.op(), tuple(shapes), True, H200)
    assert plan.grid[0] == 0
    assert math.prod(plan.output_shapes[0]) == 0


def test_images_of_no_rows_between_pads_are_padding() -> None:
    """The outputs are there, all of them sums of zeros."""
    case = Case(SILU, HALF, True, 1, 8, (0, 4), (3, 3), pads=(2, 1, 2, 1))
    assert check(case).output_shapes == ((1, 2, 4, 8),)


def test_another_batch_is_the_same_kernel() -> None:
    """What depends on the batch is passed by value: a model with a dynamic batch compiles once it is large."""
    few, many = (planned(replace(IMAGE, images=n, size=(56, 56), channels=96)) for n in (32, 64))
    assert few.kernel == many.kernel
    assert few.parameters != many.parameters


def test_large_tensors_take_wide_indices() -> None:
    case = Case(PLAIN, HALF, True, 4096, 256, (64, 64), (3, 3), pads=(1, 1, 1, 1))
    plan = planned(case)
    assert "using Index = unsigned long long" in plan.kernel.text
    assert plan.output_shapes == ((4096, 64, 64, 256),)


def test_the_tensor_cores_take_what_the_plain_cores_are_slow_at() -> None:
    """Large kernels over large images of 16-bit elements, and enough of them; everything else is plain."""
    large = Case(RELU, HALF, True, 32, 96, (56, 56), (7, 7), pads=(3, 3, 3, 3))
    assert on_tensor_cores(planned(large))
    assert on_tensor_cores(planned(large, arch=A100))
    others = [
        replace(large, images=1), replace(large, size=(14, 14)), replace(large, kernel=(5, 5), pads=(2, 2, 2, 2)),
        replace(large, dtype=FLOAT), replace(large, channels=100), replace(large, channels_last=False),
    ]  # fmt: skip
    assert not any(on_tensor_cores(planned(o)) for o in others)
    assert not on_tensor_cores(planned(large, aligned=False))
    assert not on_tensor_cores(planned(large, arch=Arch("sm_75", 40)))
    assert planned(large).shared_bytes <= costs.depthwise(H200).strip_bytes


# ---- refusals

TO, PACK, BACK = "i = Transpose <perm = [0,3,1,2]> (x)", "v = Transpose <perm = [2,3,0,1]> (w)", "perm = [0,2,3,1]"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(x, w) => (y) { y = Relu(x) }", "0 convolutions in the body, expected one"),
        ("(x, w) => (y) { c = Conv(x, w) d = Conv(x, w) y = Add(c, d) }", "2 convolutions in the body"),
        ("(x, w, b) => (y) { y = Conv(x, w, b) }", "a Conv with a bias of its own"),
        ("(x, w) => (y) { r = Relu(x) y = Conv(r, w) }", "a convolution of values that the body computes"),
        ("(x, w) => (y) { c = Conv(x, w) y = Softmax(c) }", "a reduction after a convolution"),
        ("(x, w) => (y, z) { y = Conv(x, w) z = Relu(w) }", "an output that does not read the convolution"),
        ("(x, w) => (y) { y = Conv <strides = [1,1,1]> (x, w) }", "a window over volumes"),
        ("(x, w) => (y) { y = Conv <pads = [-1,0,0,0]> (x, w) }", "negative pads [-1, 0, 0, 0]"),
        (f"(x, w) => (y) {{ {TO} {PACK} c = Conv(i, v) y = Transpose <perm = [0,3,2,1]> (c) }}", "between transposes"),
        (f"(x, w) => (y, z) {{ {TO} {PACK} c = Conv(i, v) y = Transpose <{BACK}> (c) z = Relu(c) }}", "transposes by"),
        (
            f"(x, w) => (y, i) {{ {TO} {PACK} c = Conv(i, v) y = Transpose <{BACK}> (c) }}",
            "inside the convolution that is read elsewhere",
        ),
    ],
)
def test_what_no_kernel_fits_is_refused_with_the_reason(text: str, reason: str) -> None:
    names, results = (side.count(",") + 1 for side in text.split("{")[0].split("=>"))
    fused = ops.op(text, (HALF,) * names, (HALF,) * results, "depthwise")
    assert reason in str(cuda.supports(fused))


def test_other_types_are_refused() -> None:
    fused = ops.op("(x, w) => (y) { y = Conv(x, w) }", (ops.DOUBLE,) * 2, (ops.DOUBLE,), "depthwise")
    assert cuda.supports(fused) == "a convolution of DOUBLE by DOUBLE"


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (((1, 8, 9, 9), (16, 1, 3, 3)), "8 groups, 8 channels to 16: not depthwise"),
        (((1, 6, 9, 9), (6, 1, 3, 3)), "8 groups, 6 channels to 6, 1 of them to a filter"),
        (((1, 8, 9, 9), (8, 1, 10, 10)), f"a kernel of 100 elements, expected at most {MOST_TAPS}"),
        (((1, 8, 9, 9), (8, 1, 0, 3)), "a window of 0x3 elements"),
        (((1, 8, 9), (8, 1, 3, 3)), "images of shape [1, 8, 9] and weights of shape [8, 1, 3, 3]"),
        (((1, 8, 9, 9, 9), (8, 1, 3, 3, 3)), "expected rank 3 or 4"),
    ],
)
def test_shapes_that_no_kernel_fits_are_refused_with_the_reason(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], reason: str
) -> None:
    fused = ops.op("(x, w) => (y) { y = Conv <group = 8> (x, w) }", (HALF,) * 2, (HALF,), "depthwise")
    with pytest.raises(KernelError, match="no kernel for input shapes") as error:
        cuda.plan(fused, shapes, True, H200)
    assert reason in str(error.value)


def test_an_operand_that_widens_the_output_is_refused() -> None:
    """A sum with something larger than the convolution is not computed at its places alone."""
    fused = ops.op("(x, w, r) => (y) { c = Conv <group = 8> (x, w) y = Add(c, r) }", (HALF,) * 3, (HALF,), "depthwise")
    with pytest.raises(KernelError, match="an output of another shape than the convolution"):
        cuda.plan(fused, ((1, 8, 5, 5), (8, 1, 3, 3), (2, 8, 3, 3)), True, H200)


# ---- the compiler


@pytest.mark.parametrize(("arch", "dtype"), [(A100, HALF), (H200, HALF), (H200, BRAIN), (H200, FLOAT)])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (7, 1)])
def test_kernels_compile_without_spills(arch: Arch, dtype: int, channels_last: bool, kernel: int, stride: int) -> None:
    """Weights, sums and a row of the image stay in registers, of the largest kernels too."""
    case = Case(SILU, dtype, channels_last, 32, 96, (56, 56), (kernel,) * 2, (stride,) * 2, pads=(kernel // 2,) * 4)
    cubin, log = nvrtc.build(planned(case, arch=arch).kernel, arch, ("-Xptxas=-v",))
    assert cubin.startswith(b"\x7fELF")
    assert "0 bytes spill stores" in log
