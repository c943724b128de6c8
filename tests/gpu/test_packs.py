"""Kernel packs on a real GPU: bit for bit what planning gives, without a plan; PTX for a GPU that is not in a pack."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
import onnxfuse
from onnxfuse import cuda, runtime
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.files import io
from tests.gpu.conftest import MEASURED
from tests.gpu.test_programs import CUDA, bits, planned, stream, wrong_in_threads  # noqa: F401 - planned is a fixture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(runtime.cuda_unusable() is not None, reason=f"no GPU: {runtime.cuda_unusable()}"),
]


@pytest.fixture(autouse=True, scope="module")
def plans_as_they_are() -> Iterator[None]:
    """The processes that make a pack plan as ever, whatever is set here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_plan, "small_costs", MEASURED)
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT of two layers in a file, without a pack."""
    place = tmp_path_factory.mktemp("packs") / "bert.onnx"
    io.save(onnxfuse.optimize(models.build("bert_base", dtype="float16", layers=2)), place)
    return place


@pytest.fixture(scope="module")
def fused(path: Path) -> bytes:
    return path.read_bytes()


@pytest.fixture(scope="module")
def pack(path: Path) -> Path:
    made = onnxfuse.compile(path, shapes={"batch": (1, 8), "sequence": (1, 200)})
    assert made.left == 0
    return made.target


@pytest.fixture
def nothing_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every plan and every compilation be an error."""

    def refuse(*facts: object, **more: Any) -> None:
        raise AssertionError("it is planned, or compiled")

    monkeypatch.setattr(cuda, "plan", refuse)
    monkeypatch.setattr(nvrtc, "build", refuse)


@pytest.mark.usefixtures("pack", "nothing_made")
def test_a_stream_by_a_pack_is_what_is_planned(path: Path, planned: list[list[bytes]]) -> None:  # noqa: F811 - a fixture
    session = runtime.session(path, CUDA)
    assert [bits(session, given) for given in stream()] == planned


@pytest.mark.usefixtures("pack", "nothing_made")
def test_threads_by_a_pack(path: Path, planned: list[list[bytes]]) -> None:  # noqa: F811 - a fixture
    assert not wrong_in_threads(runtime.session(path, CUDA), planned)


def test_ptx_runs_where_the_gpu_is_not_in_the_pack(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver compiles it; numbers are those of other kernels, so not the same bits."""
    here = cuda.arch_of(0).name
    other = "sm_80" if here != "sm_80" else "sm_90a"
    made = onnxfuse.compile(
        path, archs=[other], ptx=True, shapes={"batch": (1, 4), "sequence": (1, 64)}, target=tmp_path / "ptx.kernels"
    )
    assert list(made.made.kernels) == [other, "compute_86"]
    given = models.example_inputs("bert_base", batch=3, sequence=33, dtype="float16")
    expected = runtime.session(path, CUDA, kernels=False).run(None, given)

    def refuse(*facts: object, **more: Any) -> None:
        raise AssertionError("it is planned")

    monkeypatch.setattr(cuda, "plan", refuse)
    found = runtime.session(path, CUDA, kernels=made.target).run(None, given)
    for one, truth in zip(found, expected, strict=True):
        assert np.abs(one.astype(np.float32) - truth.astype(np.float32)).max() < 2e-2
