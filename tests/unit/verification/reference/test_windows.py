"""Convolutions and pools of the reference are those of onnx."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxfuse.verification.reference import float64_reference, windows
from onnxfuse.verification.reference.reference import float64_evaluator
from onnxfuse.verification.reference.windows import AveragePool, Conv, ConvTranspose, MaxPool
from onnxfuse.verification.run import sessions
from tests.support.verification.small_models import text_model

RNG = np.random.default_rng(0)

X = RNG.standard_normal((2, 6, 11, 9))

WINDOWS: list[dict[str, Any]] = [
    {},
    {"pads": [1, 0, 2, 1], "strides": [1, 2]},
    {"strides": [2, 3]},
    {"dilations": [2, 1], "pads": [1, 1, 1, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER"},
    {"auto_pad": "VALID", "strides": [3, 1]},
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("group", [1, 2, 6])
def test_convolution_is_that_of_onnx(window: dict[str, Any], group: int) -> None:
    """Ours gives what ONNX Runtime gives, for every padding, stride, dilation and group."""
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((12, 6 // group, 3, 2)), rng.standard_normal(12)
    agree(Conv, [X, w, b], group=group, **window)


@pytest.mark.parametrize("at_once", [1, 2 * 12 * 3 * 2, 1 << 22])
@pytest.mark.parametrize("group", [1, 3])
def test_a_convolution_over_some_channels_at_a_time_is_the_same(
    at_once: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little is copied together, down to one channel, and where the last part is a smaller one."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(windows, "COLUMNS", at_once)
    x, w = rng.standard_normal((2, 15, 5, 4)), rng.standard_normal((12, 15 // group, 3, 2))
    agree(Conv, [x, w], group=group, pads=[1, 0, 1, 0])


@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_a_pool_by_a_window_larger_than_the_image_is_that_of_onnx(ceil_mode: int) -> None:
    """One, larger by less than a stride: what it reaches beyond the image is no padding, and does not count."""
    window = {"kernel_shape": [13, 8], "strides": [3, 1], "ceil_mode": ceil_mode}
    agree(MaxPool, [X], **window)
    for counted in (0, 1):
        agree(AveragePool, [X], count_include_pad=counted, **window)


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize(
    "window",
    [
        {},
        {"strides": [2, 3]},
        {"strides": [2, 2], "pads": [1, 0, 0, 1], "output_padding": [1, 0]},
        {"dilations": [2, 1], "pads": [1, 1, 1, 1]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"output_shape": [22, 18], "strides": [2, 2]},
    ],
)
def test_a_transposed_convolution_is_that_of_onnx(window: dict[str, Any], group: int) -> None:
    """Where windows overlap they add up; what is padded is cut away."""
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((6, 4, 3, 2)), rng.standard_normal(4 * group)
    agree(ConvTranspose, [X, w, b], group=group, **window)
    agree(ConvTranspose, [rng.standard_normal((2, 6, 5)), rng.standard_normal((6, 4, 3))], group=group)


def test_convolutions_of_other_ranks() -> None:
    """One and three spatial axes are no special case."""
    rng = np.random.default_rng(0)
    agree(Conv, [rng.standard_normal((2, 4, 9)), rng.standard_normal((3, 4, 3))], pads=[1, 1])
    agree(Conv, [rng.standard_normal((1, 2, 5, 4, 6)), rng.standard_normal((3, 2, 2, 2, 3))], strides=[2, 1, 1])


def test_convolutions_count_their_operations() -> None:
    """Two operations per tap, output and channel of the group."""
    made = text_model(
        "g (float[n, 4, h, w] x) => (float[n, m, i, j] y) { y = Conv <group = 2> (x, k) }",
        k=np.zeros((6, 2, 3, 3), "f"),
    )
    assert float64_reference.flops(made, {"x": (2, 4, 10, 10)}) == 2 * (2 * 6 * 8 * 8) * (2 * 3 * 3)


def agree(operator: type, arrays: Sequence[np.ndarray | None], **attributes: Any) -> np.ndarray:
    """Return ours in float64, which is ONNX Runtime's in float32; None is an absent operand."""
    names = ["" if x is None else f"x{n}" for n, x in enumerate(arrays)]
    given = {
        n: x.astype(np.float32) if x.dtype.kind == "f" else x
        for n, x in zip(names, arrays, strict=True)
        if x is not None
    }
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operator.__name__, names, ["y"], **attributes)],
        "one",
        [value(n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given.items()],
        [value("y", TensorProto.FLOAT, None)],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=8)
    wide = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in given.items()}
    ours = float64_evaluator(made).run(None, wide)[0]
    theirs = sessions.run(sessions.unoptimized(made), given)["y"]
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return np.asarray(ours)
