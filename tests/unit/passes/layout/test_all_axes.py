"""Pad and Resize that name some axes are written for all, as ONNX Runtime moves Transposes through them."""

from typing import Any

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.model.fused import DOMAIN
from tests.unit.passes.layout.test_plain_runtime import assert_runs, integers, model

AXES = {
    "spatial": (2, 3), "negative": (-2, -1), "unsorted": (3, 2), "one": (2,), "the batch": (0, 2, 3),
    "channels": (1, 3),
}  # fmt: skip


def padding(axes: tuple[int, ...], value: float | None = None, cut: int = 0) -> tuple[Any, ...]:
    """Return what a Pad of axes reads."""
    begins, ends = ([0 if a == 0 else n - cut for a in axes] for n in (1, 2))
    return integers(*begins, *ends), None if value is None else np.array(value, np.float32), integers(*axes)


@pytest.mark.parametrize("how", ["initializer", "constant", "computed"])
@pytest.mark.parametrize("axes", AXES)
def test_a_pad_of_some_axes(axes: str, how: str) -> None:
    """Wherever its axes and pads are known from."""
    channels = 11 if axes == "channels" else 8
    made = assert_runs(model("Pad", padding(AXES[axes], 0.5), opset=18, how=how, channels=channels))
    assert not [n for n in made.graph.node if n.op_type == "Pad" and any(n.input[3:])]


@pytest.mark.parametrize("opset", [18, 19, 21, 23, 24, 25])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_a_pad_in_each_mode(mode: str, opset: int) -> None:
    """With no number to pad by."""
    if opset == 18 and mode == "wrap":
        mode = "reflect"
    assert_runs(model("Pad", padding((-1, 2)), opset=opset, mode=mode))


@pytest.mark.parametrize("computed", [0, 2])
def test_a_pad_of_which_one_part_is_computed(computed: int) -> None:
    """The pads alone, or the axes alone; one that cuts off, too."""
    assert_runs(model("Pad", padding((3, -2), 0.5, cut=3), opset=19, computed=computed))


@pytest.mark.parametrize("rank", [3, 5])
@pytest.mark.parametrize("how", ["initializer", "computed"])
def test_a_pad_of_signals_and_volumes(rank: int, how: str) -> None:
    """Other ranks have channels-last regions, too."""
    assert_runs(model("Pad", padding((-1,)), opset=19, rank=rank, how=how), rank)


def resizing(axes: tuple[int, ...], by: str) -> tuple[Any, ...]:
    """Return what a Resize of axes reads, by scales or to sizes."""
    to = {0: 2, 1: 8, 2: 17, 3: 9}
    if by == "sizes":
        return None, None, integers(*(to[a % 4] for a in axes))
    return None, np.array([{0: 1, 1: 1, 2: 1.5, 3: 2}[a % 4] for a in axes], np.float32)


@pytest.mark.parametrize("how", ["initializer", "constant", "computed"])
@pytest.mark.parametrize("by", ["scales", "sizes"])
@pytest.mark.parametrize("axes", [name for name in AXES if name != "channels"])
def test_a_resize_of_some_axes(axes: str, by: str, how: str) -> None:
    """Wherever its numbers are known from; of the extents of the others the batch is open."""
    made = assert_runs(model("Resize", resizing(AXES[axes], by), opset=18, how=how, mode="nearest", axes=AXES[axes]))
    assert not [a.name for n in made.graph.node if n.op_type == "Resize" for a in n.attribute if a.name == "axes"]


@pytest.mark.parametrize("opset", [18, 19, 22, 25])
@pytest.mark.parametrize(
    "how", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
)
def test_a_resize_in_each_form(how: str, opset: int) -> None:
    """A scale of 1 takes each pixel where it is, however coordinates are counted."""
    if opset == 18 and how == "half_pixel_symmetric":
        how = "half_pixel"
    axes = [3, 2]
    assert_runs(
        model("Resize", resizing((3, 2), "sizes"), opset=opset, mode="nearest", axes=axes, nearest_mode="floor",
              coordinate_transformation_mode=how, named=opset != 19)
    )  # fmt: skip


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("by", ["initializer", "computed"])
def test_a_resize_that_keeps_the_aspect_ratio(policy: str, by: str) -> None:
    """One scale for the axes that are named cannot be written for all: the graph stays channels first, and says why."""
    original = model(
        "Resize", resizing((2, 3), "sizes"), opset=18, how=by, mode="nearest", axes=[2, 3],
        keep_aspect_ratio_policy=policy,
    )  # fmt: skip
    made = assert_runs(original)
    assert not [n for n in made.graph.node if n.op_type == "Transpose"]
    seen = [near.refusal.cause.seen for near in onnxfuse.explain(original).stopped if near.rule == "nhwc"]
    assert any("names some axes alone" in reason for reason in seen), seen


@pytest.mark.parametrize("how", ["initializer", "computed"])
def test_a_resize_that_crops(how: str) -> None:
    """The region of interest has a begin and an end for each axis that is named."""
    roi = np.array([0.1, 0.2, 0.9, 0.8], np.float32)
    assert_runs(
        model("Resize", (roi, None, integers(17, 9)), opset=18, how=how, mode="nearest", axes=[2, 3],
              coordinate_transformation_mode="tf_crop_and_resize")
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("by", ["scales", "sizes"])
def test_other_resizes_of_some_axes(mode: str, by: str) -> None:
    """ONNX Runtime moves no Transposes through these."""
    assert_runs(model("Resize", resizing((2, 3), by), opset=18, mode=mode, axes=[2, 3]))
    assert_runs(model("Resize", resizing((2, 3), by), opset=18, mode=mode, axes=[2, 3], antialias=1))


def test_without_convolutions_some_axes_stay() -> None:
    """No Transposes come beside them: the file stays as it was."""
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[N,4,H,W] x) => (float[N,4,P,Q] y)
      <int64[2] pads = {1, 2}, int64[1] axes = {3}> { p = Pad (x, pads, , axes) y = Softmax (p) }"""
    made = onnxfuse.optimize(onnx.parser.parse_model(text))
    left = [n for n in made.graph.node if n.op_type == "Pad"]
    left += [n for f in made.functions if f.domain == DOMAIN for n in f.node if n.op_type == "Pad"]
    assert all(len(n.input) == 4 for n in left)
    assert left
