"""Linear interpolation in the depthwise template, by the host's compiler."""

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda import CENTRES
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.ops.shapes.windows import scaled_extent
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels import programs
from tests.support.kernels.resized import Resize


def check(case: Resize, aligned: bool = True) -> LaunchPlan:
    """Assert that the kernel gives the body within the budget, of the shape that the body has."""
    fused, inputs = case.op(), case.inputs(np.random.default_rng(0))
    plan = cuda.plan(fused, case.shapes(), aligned, H200)
    ops.within_budget(fused, inputs, emulate.run(plan, inputs, [ops.NUMPY[case.dtype]], aligned))
    return plan


@pytest.mark.parametrize("centre", CENTRES)
@pytest.mark.parametrize(
    ("dtype", "scales", "size", "channels"),
    [
        (HALF, (2, 2), (4, 5), 12),
        (FLOAT, (3, 1.5), (4, 6), 7),
        (HALF, (0.5, 0.5), (8, 6), 8),
        (BRAIN, (2, 4), (1, 3), 1),
    ],
)
def test_the_kernel_gives_the_body(
    centre: str, dtype: int, scales: tuple[float, float], size: tuple[int, int], channels: int
) -> None:
    """Up and down, by whole numbers and others, from one row, to one row, odd channels."""
    check(Resize(dtype, centre, scales, size, channels))


@pytest.mark.parametrize("size", [(4, 4), (3, 5)])
def test_channels_may_come_first(size: tuple[int, int]) -> None:
    check(Resize(HALF, "half_pixel", (2, 2), size, 3, first=True))


def test_unaligned_images_move_one_by_one() -> None:
    assert "CHANNELS = 1;" in check(Resize(HALF, "half_pixel", (2, 2), (3, 4), 16), aligned=False).kernel.text


@pytest.mark.parametrize("scale", [0.7, 2.05, 1 / 3, 0.1, 1.9565217, 3.0])
def test_an_extent_is_rounded_in_float32_and_then_down(scale: float) -> None:
    """As ONNX Runtime has it: 10 pixels by 0.7, which is a little less in float32, are 7."""
    short = np.float32(scale)
    extents = range(1, 20000)
    found = [scaled_extent(extent, float(short)) for extent in extents]
    assert found == [int(np.float32(extent) * short) for extent in extents]


def test_ten_rows_by_seven_tenths_are_seven() -> None:
    """In a launch program, too; what ONNX's own inference and its reference have, in double, is 6."""
    case = Resize(HALF, "half_pixel", (0.7, 2.05), (10, 20), 8)
    assert cuda.plan(case.op(), case.shapes(), True, H200).output_shapes[0][1:3] == (7, 41)
    programs.agrees(case.op(), case.shapes(), True, H200)


def test_far_from_the_first_pixel_places_are_exact() -> None:
    """A third is no float: after a thousand pixels its error would be a part of the result in float32."""
    check(Resize(FLOAT, "asymmetric", (1, 3), (1, 1500), 1, images=1))


def test_no_image_launches_nothing() -> None:
    case = Resize(HALF, "half_pixel", (2, 2), (4, 4), 8, images=0)
    assert cuda.plan(case.op(), case.shapes(), True, H200).grid[0] == 0


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ('mode = "cubic"', "Resize by cubic, half_pixel"),
        ('mode = "linear", antialias = 1', "Resize by linear, half_pixel, or with axes, antialias"),
        ('mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric"', "linear, half_pixel_symmetric"),
    ],
)
def test_what_no_kernel_fits_is_refused_with_the_reason(attributes: str, reason: str) -> None:
    text = (
        "(x) => (y) { i = Transpose <perm = [0,3,1,2]> (x) s = Constant <value = float[4] {1,1,2,2}> () "
        f"r = Resize <{attributes}> (i, , s) y = Transpose <perm = [0,2,3,1]> (r) }}"
    )
    assert reason in str(cuda.supports(ops.op(text, (HALF,), (HALF,), "depthwise")))
