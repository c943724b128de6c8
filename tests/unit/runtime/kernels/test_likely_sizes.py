"""Sizes for which kernels are compiled before anyone asks."""

import onnx
import pytest

from onnxfuse.runtime.kernels.likely_sizes import around, likely_sizes

Dims = list[str | int | None]


@pytest.mark.parametrize(
    ("dims", "sizes"),
    [
        (["N", 3, "H", "W"], {"N": 1, "H": 640, "W": 640}),
        (["N", "H", "W", 3], {"N": 1, "H": 640, "W": 640}),
        (["N", "H", "W", 64], {"N": 1, "H": 128, "W": 128}),
        (["batch", "sequence"], {"batch": 1, "sequence": 128}),
        ([None, 80, None], {"x[0]": 1, "x[2]": 128}),
        ([1, 3, 224, 224], {}),
        ([], {}),
    ],
)
def test_sizes_by_what_an_axis_usually_is(dims: Dims, sizes: dict[str, int]) -> None:
    assert likely_sizes([onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, dims)]) == sizes


def test_a_batch_is_a_batch_in_every_input() -> None:
    """Named by the first input that has it."""
    inputs = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.INT64, ["batch", "batch"]) for n in "xy"]
    assert likely_sizes(inputs) == {"batch": 1}


def test_what_changes_is_guessed_below_between_and_above() -> None:
    found = around({"N": 1, "H": 640, "W": 320}, {"N": 1, "H": 960, "W": 1280})
    assert {sizes["N"] for sizes in found} == {1}
    assert {sizes["H"] for sizes in found} == {128, 768, 1920}
    assert {sizes["W"] for sizes in found} == {64, 640, 2560}
    assert len(found) == 9
    assert all(sizes["H"] % 32 == 0 and sizes["W"] % 32 == 0 for sizes in found)


def test_many_dimensions_change_together() -> None:
    found = around(dict.fromkeys("abc", 10), dict.fromkeys("abc", 40))
    assert [tuple(sizes.values()) for sizes in found] == [(2, 2, 2), (20, 20, 20), (80, 80, 80)]


def test_no_size_is_0() -> None:
    assert {sizes["a"] for sizes in around({"a": 1}, {"a": 2})} == {1, 4}
