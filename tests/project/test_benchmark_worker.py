"""The C++ process that tests and measurements on a GPU talk to, here on the stand-in CUDA libraries."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from bench.worker import CAPI, Worker
from onnxfuse.runtime.engine.bridge import LIBRARY
from tests.support import fused_models as models
from tests.support import serving
from tests.unit.runtime.engine.test_cpp import pack


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs, the model and the library beside its pack."""
    folder = tmp_path_factory.mktemp("worker")
    serving.build(folder)
    onnx.save(models.chain(), folder / "model.onnx")
    shutil.copy(LIBRARY, folder)
    (folder / "model.onnx.kernels").write_bytes(pack(serving.image(folder / "kernels.so")))
    return folder


def worker(made: Path, fake_cuda: Path, *flags: str, trace: Path | None = None, library: bool = True) -> Worker:
    more = {"LD_LIBRARY_PATH": f"{fake_cuda}:{CAPI}"} | ({} if trace is None else {"FAKE_CUDA_TRACE": str(trace)})
    return Worker(made / "built", made / "model.onnx", made / LIBRARY.name if library else None, *flags, more=more)


@pytest.mark.parametrize("flags", [(), ("--graph",), ("--old", "--user-stream")])
def test_a_worker_answers_and_is_timed(flags: tuple[str, ...], made: Path, fake_cuda: Path, tmp_path: Path) -> None:
    """Of any shape, one after the other; with a CUDA graph, of one, which is launched from the third run on."""
    rng = np.random.default_rng(0)
    b = rng.standard_normal(8, np.float32)
    with worker(made, fake_cuda, *flags, trace=tmp_path / "trace") as asked:
        for rows in (3,) if "--graph" in flags else (3, 7, 1):
            x = rng.standard_normal((rows, 8), np.float32)
            (y,) = asked.run([x, b])
            np.testing.assert_allclose(y, -np.tanh(2 * np.maximum(x + b, 0)), atol=1e-6)
        spent = asked.times(20)
        assert spent.shape == (20,)
        assert (spent > 0).all()
        assert asked.times(5, waited=False).shape == (5,)
    calls = [json.loads(line)["call"] for line in (tmp_path / "trace").read_text().splitlines()]
    assert (calls.count("cudaGraphLaunch") >= 25) == ("--graph" in flags)
    assert calls.count("cuLaunchKernel") >= 3 * (2 if "--graph" in flags else 25)


def test_what_goes_wrong_is_told(made: Path, fake_cuda: Path) -> None:
    with worker(made, fake_cuda) as asked, pytest.raises(RuntimeError, match="Invalid rank for input"):
        asked.run([np.zeros(8, np.float32), np.zeros(8, np.float32)])
    with worker(made, fake_cuda, "--pack", "nowhere") as asked, pytest.raises(RuntimeError, match="nowhere cannot be"):
        asked.run([])
