"""Tensor maps as the driver gets them, and those that no driver takes."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.cuda.planning.launch_plan import PixelWindow, TensorMapSpec
from onnxfuse.runtime.engine.bridge import bridge
from tests.support.scenarios import FakeCuda

CODES = {
    TensorProto.UINT8: 0, TensorProto.INT8: 0, TensorProto.UINT16: 1, TensorProto.INT16: 1, TensorProto.UINT32: 2,
    TensorProto.INT32: 3, TensorProto.FLOAT16: 6, TensorProto.FLOAT: 7, TensorProto.BFLOAT16: 9,
}  # fmt: skip
"""CUtensorMapDataType of each element type. Signed integers go as unsigned ones where the driver has no other."""
PLAIN = TensorMapSpec(1, TensorProto.FLOAT16, (64, 32), (128,), (64, 16), offset=32)
WINDOW = PixelWindow((-1, -2), (-3, -4), (1, 2))
IMAGES = TensorMapSpec(0, TensorProto.FLOAT, (8, 7, 6, 2), (32, 224, 1344), (8, 64), WINDOW, to_tf32=True)


def encoded() -> Any:
    specs = [TensorMapSpec(0, dtype, (64, 32), (128,), (64, 16)) for dtype in CODES]
    maps = bridge().encoded_tensor_maps([PLAIN, IMAGES, *specs], [4096, 8192])
    return [np.frombuffer(maps[at : at + 48], np.uint64).tolist() for at in (0, 128)]


def test_a_map_is_encoded_with_its_types_and_numbers(on_fake_cuda: FakeCuda) -> None:
    """Address with offset, extents, strides, box; of a window its corners, and its step along each axis."""
    plain, images = on_fake_cuda(encoded)
    assert plain == [8192 + 32, 64, 32, 128, 64, 16]
    assert images == [4096, 8, 7, 32, 8, 64]
    tiled = on_fake_cuda.trace("cuTensorMapEncodeTiled")
    assert [call["type"] for call in tiled] == [6, *CODES.values()]
    (window,) = on_fake_cuda.trace("cuTensorMapEncodeIm2col")
    assert (window["type"], window["rank"], window["box"]) == (11, 4, [8, 64])  # TFLOAT32
    assert (window["lower"], window["upper"], window["steps"]) == ([-1, -2], [-3, -4], [1, 2])


@pytest.mark.parametrize(
    ("spec", "count", "message"),
    [
        (TensorMapSpec(0, TensorProto.DOUBLE, (64, 32), (128,), (64, 16)), 1, "a tensor map of element type 11"),
        (TensorMapSpec(2, TensorProto.FLOAT, (64, 32), (128,), (64, 16)), 1, "a tensor map of pointer 2 of 2"),
        (PLAIN, 25, "25 tensor maps, expected at most 24"),
    ],
)
def test_a_map_that_no_launch_has_is_refused(spec: TensorMapSpec, count: int, message: str) -> None:
    """In words, before the driver is asked."""
    with pytest.raises(RuntimeError, match=message):
        bridge().encoded_tensor_maps([spec] * count, [4096, 8192])
