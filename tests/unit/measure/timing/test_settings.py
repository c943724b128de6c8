"""The settings of ONNX Runtime at which an original is timed."""

import pytest

from onnxfuse.measure.timing.settings import cpu_settings, cuda_settings


def test_nhwc_is_tried_where_there_are_convolutions() -> None:
    """NHWC with and without CUDA graph and conv bias; never for a model without convolutions."""
    plain, convolving = cuda_settings(convolutions=False), cuda_settings(convolutions=True)
    assert [s.name for s in plain] == ["default", "CUDA graph"]
    assert convolving[:2] == plain
    nhwc = [tuple(s.options) for s in convolving[2:]]
    assert nhwc == [
        ("prefer_nhwc",),
        ("prefer_nhwc", "enable_cuda_graph"),
        ("prefer_nhwc", "fuse_conv_bias"),
        ("prefer_nhwc", "fuse_conv_bias", "enable_cuda_graph"),
    ]


@pytest.mark.parametrize(("cores", "threads"), [(1, [0, 1]), (2, [0, 1, 2]), (64, [0, 1, 32, 64])])
def test_thread_counts(cores: int, threads: list[int]) -> None:
    """ONNX Runtime's own choice, then one thread, half of the cores, all; none twice."""
    assert [s.threads for s in cpu_settings(cores)] == threads
