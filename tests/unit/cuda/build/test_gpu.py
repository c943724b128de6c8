"""What a GPU is, on the stand-in driver."""

import ctypes
import sys
from typing import Any

import pytest

from onnxfuse import cuda
from onnxfuse.cuda.build import gpu
from onnxfuse.support.errors import DeviceError
from tests.support.scenarios import FakeCuda


def facts() -> Any:
    arch = cuda.arch_of(0)
    return [arch.name, arch.sm_count, arch.threads_per_sm, "cupy" in sys.modules]


def test_the_driver_tells_it_without_cupy(on_fake_cuda: FakeCuda) -> None:
    assert on_fake_cuda(facts) == ["sm_90a", 132, 2048, False]


def test_without_a_driver_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", nowhere)
    with pytest.raises(DeviceError, match="there is no NVIDIA driver"):
        gpu.arch_of.__wrapped__(0)
