"""A GPU through its driver alone, on the stand-in libraries: a session with a kernel pack needs no CuPy."""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from onnxfuse import kernels, runtime
from onnxfuse.kernels.build import driver
from onnxfuse.model.errors import DeviceError, KernelError
from onnxfuse.model.spread import Workers
from onnxfuse.runtime import packing
from tests.runtime import growth
from tests.runtime.conftest import FakeCuda
from tests.runtime.test_packs import compiled

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


def a_gpu() -> Any:
    words = []
    for image in (b"host-kernels:/nowhere", b"anything"):
        try:
            words.append(driver.load(image, "entry", 0).kernel.ptr > 0)
        except KernelError as error:
            words.append(str(error))
    room = kernels.zeros(64, 0)
    first = room.ptr
    ctypes.memset(room.ptr, 7, 64)
    other = kernels.zeros(64, 0)
    del room
    again = kernels.zeros(64, 0)
    arch = kernels.arch_of(0)
    return {
        "arch": [arch.name, arch.sm_count, arch.threads_per_sm, kernels.gpu_name(0), kernels.cuda_version()],
        "loaded": words,
        "rooms": [again.ptr == first, other.ptr == first, ctypes.string_at(again.ptr, 64).hex()],
        "cupy": "cupy" in sys.modules,
    }


def test_a_gpu_is_asked_through_its_driver(on_fake_cuda: FakeCuda) -> None:
    """Memory that is free again is used again, as zeros; an image that the driver does not take is told."""
    facts = on_fake_cuda(a_gpu)
    assert facts["arch"] == ["sm_90a", 132, 2048, "a stand-in", 13000]
    assert facts["loaded"][0].startswith("entry: the driver does not load it: CUDA_")
    assert facts["loaded"][1] is True
    assert facts["rooms"] == [True, False, "00" * 64]
    assert not facts["cupy"]


def pack_made() -> Any:
    packing.Workers = lambda processes: Workers(1)  # type: ignore[assignment,misc]
    return str(compiled(Path(os.environ["XDG_CACHE_HOME"]).parent))


def opened() -> Any:
    path = Path(os.environ["XDG_CACHE_HOME"]).parent / "chain.onnx"
    session = runtime.session(path, CUDA)
    shapes = [list(session.run(None, growth.feeds(n))[0].shape) for n in (5, 4096)]
    return {"shapes": shapes, "as": [p.runs_as for p in session.fused], "cupy": "cupy" in sys.modules}


def test_a_session_with_a_pack_imports_no_cupy(on_fake_cuda: FakeCuda) -> None:
    """Its import takes longer than all else on the way to the first run."""
    on_fake_cuda(pack_made)
    assert on_fake_cuda(opened) == {"shapes": [[5, 8], [4096, 8]], "as": ["kernel"] * 3, "cupy": False}
    assert len(on_fake_cuda.trace("cuModuleLoadData")) >= 3


def test_without_a_driver_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", nowhere)
    driver._driver.cache_clear()
    with pytest.raises(DeviceError, match="there is no NVIDIA driver"):
        driver.arch_of.__wrapped__(0)
