"""Exported models on a real GPU, served by C++: bit for bit what Python gives; graphs, streams, threads, PTX."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import models
import onnxfuse
from bench.worker import Worker, build, environment
from onnxfuse import cuda, runtime
from onnxfuse.files import io
from tests.gpu.test_programs import CUDA, feeds

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(runtime.cuda_unusable() is not None, reason=f"no GPU: {runtime.cuda_unusable()}"),
]

SHAPES = 500
LIBRARY, MODEL, PACK = "1/libonnxfuse.so", "1/model.onnx", "1/model.onnx.kernels"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT of two layers: fused.onnx, and `served` for 1 to 8 texts of 1 to 200 tokens, for this GPU alone."""
    folder = tmp_path_factory.mktemp("bert")
    io.save(onnxfuse.optimize(models.build("bert_base", dtype="float16", layers=2)), folder / "fused.onnx")
    onnxfuse.export_library(
        folder / "fused.onnx", folder / "served", shapes={"batch": (1, 8), "sequence": (1, 200)}, ptx=False
    )
    return folder


@pytest.fixture(scope="module")
def session(bert: Path) -> runtime.Session:
    """The fused model in Python, with the same kernels."""
    return runtime.session(bert / "fused.onnx", CUDA, kernels=bert / "served" / PACK)


@pytest.fixture
def worker(programs: Path, bert: Path) -> Iterator[Worker]:
    with Worker(programs, bert / "served" / MODEL, bert / "served" / LIBRARY) as opened:
        yield opened


def ordered(session: runtime.Session, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [given[i.name] for i in session.get_inputs()]


def test_cpp_gives_the_bits_of_python(session: runtime.Session, worker: Worker) -> None:
    """On 500 random shapes of the ranges."""
    chance = random.Random(1)
    for _ in range(SHAPES):
        given = feeds(chance)
        expected = [y.tobytes() for y in session.run(None, given)]
        assert [y.tobytes() for y in worker.run(ordered(session, given))] == expected, [*map(np.shape, given.values())]


@pytest.mark.parametrize("flags", [("--graph",), ("--user-stream",), ("--old",), ("--old", "--user-stream")])
def test_graphs_and_streams_of_the_user(
    flags: tuple[str, ...], session: runtime.Session, programs: Path, bert: Path
) -> None:
    given = feeds(random.Random(2))
    with Worker(programs, bert / "served" / MODEL, bert / "served" / LIBRARY, *flags) as opened:
        found = [y.tobytes() for y in opened.run(ordered(session, given))]
        opened.times(50)
    assert found == [y.tobytes() for y in session.run(None, given)]


def test_shapes_beyond_the_ranges(session: runtime.Session, worker: Worker) -> None:
    """By the general kernels, whose sums are in another order."""
    given = models.example_inputs("bert_base", batch=9, sequence=201, dtype="float16")
    for ours, expected in zip(worker.run(ordered(session, given)), session.run(None, given), strict=True):
        np.testing.assert_allclose(ours.astype(np.float32), expected.astype(np.float32), rtol=0.02, atol=0.02)


def served(programs: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return serve(programs, folder / MODEL, folder / LIBRARY, *options)


def serve(
    programs: Path, model: Path, library: Path | str, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    command = [programs / "serve", model, library, *options]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=environment() | variables
    )


def test_four_threads_open_and_close_a_hundred_sessions_each(programs: Path, tmp_path: Path) -> None:
    """All of them answer the same for the same rows; those of the last half leave 20 kB more than ONNX Runtime's.

    In one arena of the allocator: in many, what threads free lies about, and ONNX Runtime's alone leave 4 to 16 MB.
    """
    io.save(models.build("mlp"), tmp_path / "mlp.onnx")
    fused = onnxfuse.optimize(tmp_path / "mlp.onnx")
    assert all(v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for v in fused.graph.input)
    onnxfuse.export_library(fused, tmp_path / "mlp", ptx=False)
    alone = served(programs, tmp_path / "mlp", "--rows", "5")
    assert alone.returncode == 0, alone.stderr
    often = ("--rows", "4", "--threads", "4", "--cycles", "100")
    many, plain = (
        serve(programs, model, library, *often, MALLOC_ARENA_MAX="1")
        for model, library in ((tmp_path / "mlp" / MODEL, tmp_path / "mlp" / LIBRARY), (tmp_path / "mlp.onnx", ""))
    )
    assert many.returncode == 0, many.stderr
    assert plain.returncode == 0, plain.stderr
    *answers, last = many.stdout.splitlines()
    assert answers[1] == alone.stdout.splitlines()[0]  # thread n has 4 + n rows
    own = int(plain.stdout.split()[-1])
    assert int(last.split()[-1]) < own + 20 * 4 * 50


def test_a_foreign_architecture_is_refused_by_name(programs: Path, bert: Path, tmp_path: Path) -> None:
    own = cuda.arch_of(0)
    other = "sm_80" if own.number != 80 else "sm_89"
    onnxfuse.export_library(
        bert / "fused.onnx", tmp_path / "m", archs=[other], shapes={"batch": 1, "sequence": 8}, ptx=False
    )
    with (
        Worker(programs, tmp_path / "m" / MODEL, tmp_path / "m" / LIBRARY) as opened,
        pytest.raises(RuntimeError, match=rf"has no kernels for this GPU, sm_{own.number}; it has {other}"),
    ):
        opened.run([])


def test_ptx_serves_a_gpu_that_is_not_in_the_pack(
    programs: Path, bert: Path, session: runtime.Session, tmp_path: Path
) -> None:
    """The driver compiles it; plans for another GPU add in another order."""
    other = "sm_80" if cuda.arch_of(0).number != 80 else "sm_89"
    onnxfuse.export_library(
        bert / "fused.onnx", tmp_path / "m", archs=[other], ptx=True, shapes={"batch": 2, "sequence": 50}
    )
    given = models.example_inputs("bert_base", batch=2, sequence=50, dtype="float16")
    with Worker(programs, tmp_path / "m" / MODEL, tmp_path / "m" / LIBRARY) as opened:
        found = opened.run(ordered(session, given))
    for ours, expected in zip(found, session.run(None, given), strict=True):
        np.testing.assert_allclose(ours.astype(np.float32), expected.astype(np.float32), rtol=0.02, atol=0.02)
