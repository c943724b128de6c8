"""What is said when CUDA cannot be used."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from onnxfuse.runtime.engine import cuda_provider


@pytest.fixture(autouse=True)
def _ask_again() -> Any:
    """The answer is remembered for the life of a process; each test asks anew."""
    cuda_provider.cuda_unusable.cache_clear()
    yield
    cuda_provider.cuda_unusable.cache_clear()


def test_a_build_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package onnxruntime has no CUDA provider, onnxruntime-gpu has."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "onnxruntime-gpu has" in (cuda_provider.cuda_unusable() or "")


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libcuda.so.1 the loader's own words are passed on."""
    monkeypatch.setattr(ctypes, "CDLL", _cannot_open)
    assert cuda_provider.cuda_unusable() == "there is no NVIDIA driver (libcuda.so.1: cannot open shared object file)"


def test_a_missing_library_is_named_and_looked_for_among_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no CUDA libraries those of wheels are tried; then the missing one is named."""
    preloaded: list[bool] = []
    monkeypatch.setattr(cuda_provider, "_driver_missing", lambda: None)
    monkeypatch.setattr(
        cuda_provider, "_cannot_load", lambda library, mode=0: None if "shared" in library else "libcudart.so.13"
    )
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda cuda: preloaded.append(cuda))
    assert cuda_provider.cuda_unusable() == "a CUDA library is missing (libcudart.so.13)"
    assert preloaded == [True]


def test_devices_are_counted_before_anything_else_starts_cuda(fake_cuda: Path) -> None:
    """A driver that nobody has started tells of none."""
    ask = "from onnxfuse.runtime.engine.cuda_provider import device_count; print(device_count())"
    environment = os.environ | {"LD_LIBRARY_PATH": str(fake_cuda)}
    assert subprocess.run([sys.executable, "-c", ask], capture_output=True, env=environment).stdout == b"1\n"


def _cannot_open(library: str, *_: Any) -> ctypes.CDLL:
    raise OSError(f"{library}: cannot open shared object file")
