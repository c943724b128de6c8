"""Resize and GridSample of the reference: what they are known to give, and what onnx's slow ones do."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from onnxfuse.verification.reference import resizing
from onnxfuse.verification.reference.resizing import GridSample, Resize, Upsample, coordinates, resized
from tests.unit.verification.reference.test_windows import agree

RNG = np.random.default_rng(0)
X = RNG.standard_normal((1, 2, 5, 4))
LINE = np.array([[[0.0, 1, 2, 3]]])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "where", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
)
@pytest.mark.parametrize("scale", [2.0, 0.6, 1.5])
def test_a_resize_is_that_of_onnx_runtime(mode: str, where: str, scale: float) -> None:
    """Enlarged and shrunk, however coordinates are counted."""
    scales = np.array([1, 1, scale, 2 - scale / 2], np.float32)
    agree(Resize, [X, None, scales], mode=mode, coordinate_transformation_mode=where)


def test_a_linear_image_stays_linear() -> None:
    """Between the first and the last pixel; beyond them it is that pixel."""
    found = resized(LINE, [2], [7], [7 / 4], "linear", "align_corners", "floor")
    np.testing.assert_allclose(found[0, 0], np.linspace(0, 3, 7), atol=1e-15)
    half = resized(LINE, [2], [8], [2.0], "linear", "half_pixel", "floor")
    np.testing.assert_allclose(half[0, 0], np.clip(np.arange(8) / 2 - 0.25, 0, 3), atol=1e-15)
    np.testing.assert_array_equal(resized(LINE, [2], [4], [1.0], "cubic", "half_pixel", "floor"), LINE)


@pytest.mark.parametrize("a", [-0.75, -0.5])
def test_cubic_weights_are_a_partition_of_one(a: float) -> None:
    """A constant stays one, and with coefficient -0.5 a parabola between whole pixels, too."""
    ones = np.ones((1, 1, 6))
    for outside in (False, True):
        found = resized(ones, [2], [13], [13 / 6], "cubic", "half_pixel", "floor", cubic=(a, outside))
        np.testing.assert_allclose(found, 1.0, rtol=1e-14)
    parabola = (np.arange(8.0) ** 2).reshape(1, 1, 8)
    at = coordinates("asymmetric", 8, 16, 2.0, (0, 1), np.float64)
    found = resized(parabola, [2], [16], [2.0], "cubic", "asymmetric", "floor", cubic=(a, False))[0, 0]
    inner = (at > 1) & (at < 6)
    assert np.allclose(found[inner], at[inner] ** 2, atol=1e-12) is (a == -0.5)


@pytest.mark.parametrize(
    ("rounding", "picked"),
    [
        ("round_prefer_floor", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("round_prefer_ceil", [0, 1, 1, 2, 2, 3, 3, 3]),
        ("floor", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("ceil", [0, 1, 1, 2, 2, 3, 3, 3]),
    ],
)
def test_a_coordinate_between_two_pixels_is_rounded_as_it_says(rounding: str, picked: list[int]) -> None:
    """Half way between both, every second pixel of one twice as large."""
    found = resized(LINE, [2], [8], [2.0], "nearest", "asymmetric", rounding)
    assert found[0, 0].tolist() == picked


def test_a_part_of_an_image_and_what_is_beyond_it() -> None:
    """tf_crop_and_resize: a region of interest, of one pixel its middle, and a value outside of the image."""
    roi = np.array([0.0, 1.0])
    whole = resized(LINE, [2], [4], [1.0], "linear", "tf_crop_and_resize", "floor", roi)
    np.testing.assert_allclose(whole, LINE)
    outside = resized(LINE, [2], [3], [0.75], "linear", "tf_crop_and_resize", "floor", np.array([0.5, 1.5]), -7.0)
    np.testing.assert_allclose(outside[0, 0], [1.5, 3.0, -7.0])
    middle = resized(LINE, [2], [1], [0.25], "linear", "tf_crop_and_resize", "floor", roi)
    np.testing.assert_allclose(middle[0, 0], [1.5])


@pytest.mark.parametrize(("policy", "shape"), [("stretch", (10, 4)), ("not_larger", (5, 4)), ("not_smaller", (10, 8))])
def test_an_aspect_ratio_is_kept_by_one_scale(policy: str, shape: tuple[int, int]) -> None:
    """The smaller or the larger of both; 5x4 to 10x4."""
    to = np.array([10, 4])
    found = agree(Resize, [X, None, None, to], axes=[2, 3], keep_aspect_ratio_policy=policy, mode="linear")
    assert found.shape[2:] == shape


def test_an_extent_is_that_of_float32() -> None:
    """Whose product with the scale is rounded down: 3 * 1/3 is 1 there."""
    x = np.arange(3.0).reshape(1, 1, 3)
    for scale in (1 / 3, 2 / 3, 1.1):
        found = resized(x, [2], None, [scale], "nearest", "asymmetric", "floor")
        assert found.shape[2] == int(np.floor(np.float32(3) * np.float32(scale)))


def test_the_older_operators_count_as_they_did() -> None:
    """Upsample has its scales as an input, and before as an attribute; it shrinks by rounding up."""
    node: Any = object.__new__(Upsample)
    by_input, by_attribute = node._run(LINE, [1, 1, 2.0]), node._run(LINE, scales=[1, 1, 2.0])
    np.testing.assert_array_equal(by_input[0], by_attribute[0])
    assert by_input[0][0, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert resized(LINE, [2], None, [0.6], "nearest", "asymmetric", "simple")[0, 0].tolist() == [0, 2]


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_a_grid_sample_is_that_of_onnx_runtime(mode: str, padding: str, corners: int) -> None:
    """Points inside and outside, between pixels and on them."""
    rng = np.random.default_rng(0)
    grid = rng.uniform(-1.5, 1.5, (1, 3, 7, 2))
    agree(GridSample, [X, grid], mode=mode, padding_mode=padding, align_corners=corners)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_grid_of_pixels_gives_the_image(rank: int) -> None:
    """In any rank: the grid has the last axis first."""
    rng = np.random.default_rng(0)
    extents = (4, 3, 5)[:rank]
    x = rng.standard_normal((1, 2, *extents))
    axes = np.meshgrid(*(np.linspace(-1, 1, n) for n in extents), indexing="ij")
    grid = np.stack(axes[::-1], -1)[None]
    for mode in ("linear", "nearest"):
        node: Any = object.__new__(GridSample)
        np.testing.assert_allclose(node._run(x, grid, mode=mode, align_corners=1)[0], x, atol=1e-14)


def test_a_reflection_goes_on_and_on() -> None:
    """Back and forth between both ends, as often as need be; an axis of one pixel has one place."""
    at = np.array([-3.0, -1, 0, 2, 3, 4, 5, 9])
    expected = [1, 1, 0, 2, 1, 0, 1, 1]
    np.testing.assert_allclose(resizing._reflected(at, 0.0, 2.0), expected)
    assert resizing._reflected(at, 1.0, 1.0).tolist() == [1.0] * 8
    assert all(math.isclose(a, b) for a, b in itertools.pairwise(resizing._reflected(np.array([2.5, 2.5]), 0.0, 2.0)))
