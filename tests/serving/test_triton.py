"""An exported model in a real Triton server, asked by tritonclient, on the stand-in CUDA libraries.

The package index has the server (in nvidia-pytriton) without its ONNX Runtime backend: triton_backend/model.py stands
for that one. Server, config.pbtxt, batching, library, pack and requests are the real ones.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxfuse
from onnxfuse import cuda
from onnxfuse.runtime.packing import packing
from onnxfuse.support.process_pool import Workers
from tests.serving.ports import free_port
from tests.support import fused_models as models
from tests.support import serving

MISSING = [n for n in ("pytriton", "tritonclient") if importlib.util.find_spec(n) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)}: make test-serving installs them")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with the model `twice`, -tanh(2 x)."""
    folder = tmp_path_factory.mktemp("triton")
    serving.build(folder)
    model = models.model(
        "twice (float[N, 8] x) => (float[N, 8] y) { t = onnxfuse.TwiceTanh_2 (x)  y = onnxfuse.Negate_3 (t) }",
        models.TWICE_TANH, models.NEGATE,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "Workers", lambda processes: Workers(1))
        for name in ("compile", "portable"):
            patch.setattr(cuda, name, lambda kernel, arch: serving.image(folder / "kernels.so"))
        onnxfuse.export_library(model, folder / "models" / "twice", archs=["sm_90"], shapes={"N": (1, 16)})
    return folder / "models"


class Server:
    """A running server."""

    def __init__(self, repository: Path, libraries: Path, folder: Path) -> None:
        found = importlib.util.find_spec("pytriton")  # it needs more to be imported
        assert found is not None
        (package,) = found.submodule_search_locations or [""]
        distribution = Path(package) / "tritonserver"
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        backends = folder / "backends"
        shutil.copytree(distribution / "backends", backends)
        stub = distribution / "python_backend_stubs" / version / "triton_python_backend_stub"
        (backends / "python" / stub.name).symlink_to(stub)
        shutil.copytree(HERE / "triton_backend", backends / "onnxruntime")
        self.http, self.log = free_port(), folder / "server.log"
        own = Path(np.__file__).parents[1]
        environment = os.environ | {
            "PACKAGES": str(own),
            "PRELOADED": json.dumps([str(p) for p in sorted(libraries.glob("*.so*"))]),
        }
        command = [
            distribution / "bin" / "tritonserver", "--model-repository", repository, "--backend-directory", backends,
            "--http-port", str(self.http), "--allow-grpc", "false", "--allow-metrics", "false",
            "--exit-timeout-secs", "1",
        ]  # fmt: skip
        with self.log.open("w") as log:
            self.process = subprocess.Popen(list(map(str, command)), env=environment, stdout=log, stderr=log)

    def client(self) -> Any:
        from tritonclient.http import InferenceServerClient

        return InferenceServerClient(f"127.0.0.1:{self.http}", concurrency=16)

    def wait(self) -> None:
        client = self.client()
        for _ in range(300):
            assert self.process.poll() is None, self.log.read_text()
            try:
                if client.is_server_ready():
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(self.log.read_text())


@pytest.fixture(scope="module")
def server(
    repository: Path,
    fake_cuda: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    config = repository / "twice" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_GPU", "KIND_CPU"))  # the server asks the machine for GPUs
    running = Server(repository, fake_cuda, tmp_path_factory.mktemp("server"))
    try:
        running.wait()
        yield running
    finally:
        running.process.terminate()
        running.process.wait(30)


def asked(client: Any, x: np.ndarray) -> np.ndarray:
    from tritonclient.http import InferInput

    given = InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    found: np.ndarray = client.infer("twice", [given]).as_numpy("y")
    return found


def test_requests_are_answered(server: Server) -> None:
    """One after the other, of several shapes; and many at a time, which the server joins."""
    rng = np.random.default_rng(0)
    client = server.client()
    for rows in (1, 3, 16):
        x = rng.standard_normal((rows, 8), np.float32)
        np.testing.assert_allclose(asked(client, x), -np.tanh(2 * x), atol=1e-6)
    many = [rng.standard_normal((1, 8), np.float32) for _ in range(200)]
    with ThreadPoolExecutor(16) as threads:
        for x, y in zip(many, threads.map(lambda x: asked(server.client(), x), many), strict=True):
            np.testing.assert_allclose(y, -np.tanh(2 * x), atol=1e-6)
    sizes = [int(line.split()[-1]) for line in server.log.read_text().splitlines() if line.startswith("batch of")]
    assert sum(sizes) == 203
    assert max(sizes) > 1


def test_the_server_knows_the_model_as_the_folder_tells_it(server: Server, repository: Path) -> None:
    config = server.client().get_model_config("twice")
    assert config["backend"] == "onnxruntime"
    assert config["max_batch_size"] == 16
    assert [(i["name"], i["data_type"], i["dims"]) for i in config["input"]] == [("x", "TYPE_FP32", [8])]
    library = repository / "twice" / "1" / "libonnxfuse.so"
    assert config["model_operations"]["op_library_filename"] == [str(library)]


def test_more_rows_than_the_range_are_refused_by_the_server(server: Server) -> None:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match="must be <= 16"):
        asked(server.client(), np.zeros((17, 8), np.float32))
