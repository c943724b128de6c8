"""Exported models, served from their folder by examples/cpp and by ONNX Runtime alone, on the stand-in libraries."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfuse
from onnxfuse import cuda
from onnxfuse.model.fused import fused_ops
from onnxfuse.runtime.packing import packing
from onnxfuse.runtime.sessions.ort_ops import place_library_ops, with_library_ops
from onnxfuse.support.process_pool import Workers
from tests.support import fused_models as models
from tests.support import serving
from tests.support.scenarios import FakeCuda
from tests.support.serving import Served, right
from tests.support.small import halved
from tests.unit.fusion.test_attention import attention

LIBRARY, MODEL = "1/libonnxfuse.so", "1/model.onnx"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, the kernels, and two exported models, `chain` and `other`, for 1 to 8 rows."""
    folder = tmp_path_factory.mktemp("export")
    serving.build(folder)

    def image(kernel: cuda.KernelSource, arch: cuda.Arch) -> bytes:
        return serving.image(folder / ("general.so" if "general/general.cuh" in kernel.text else "kernels.so"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "Workers", lambda processes: Workers(1))
        for name in ("compile", "portable"):
            patch.setattr(cuda, name, image)
        for name, model in (("chain", models.chain()), ("other", other())):
            onnxfuse.export_library(model, folder / name, archs=["sm_90"], ptx=True, shapes={"N": (1, 8)})
    return folder


def other() -> onnx.ModelProto:
    """-tanh(2 x): ops of the same names, in another pack."""
    graph = """other (float[N, 8] x) => (float[N, 8] y) {
      t = onnxfuse.TwiceTanh_2 (x)
      y = onnxfuse.Negate_3 (t)
    }"""
    return models.model(graph, models.TWICE_TANH, models.NEGATE)


def served(made: Path, libraries: Path, *options: str | Path, folder: Path | None = None, **more: str) -> Served:
    place = folder or made / "chain"
    return Served(made, libraries, place / MODEL, place / LIBRARY, *options, **more)


@pytest.mark.parametrize("how", [[], ["--old", "--user-stream"]])
def test_the_folder_is_served_wherever_it_lies(how: list[str], made: Path, fake_cuda: Path, tmp_path: Path) -> None:
    """By both registrations, with nothing but what is in it."""
    shutil.copytree(made / "chain", tmp_path / "elsewhere")
    assert right(served(made, fake_cuda, *how, folder=tmp_path / "elsewhere"), 4)


def test_a_path_from_the_current_folder_names_it(
    made: Path, fake_cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made / "chain")
    assert right(served(made, fake_cuda, folder=Path()), 4)


def test_shapes_beyond_the_ranges_run_by_the_general_kernels(made: Path, fake_cuda: Path) -> None:
    """The ranges end at 8 rows."""
    assert right(served(made, fake_cuda, "--rows", "40", "--threads", "4", "--cycles", "3"), 40, 4)


def test_a_later_gpu_takes_the_ptx_and_an_older_one_is_refused_by_name(made: Path, fake_cuda: Path) -> None:
    assert right(served(made, fake_cuda, FAKE_CUDA_CAPABILITY="100"), 4)
    refused = served(made, fake_cuda, FAKE_CUDA_CAPABILITY="75")
    assert refused.code == 1
    assert "has no kernels for this GPU, sm_75; it has sm_90a, compute_86" in refused.error


def test_a_damaged_pack_is_refused_by_name(made: Path, fake_cuda: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "chain", tmp_path / "damaged")
    pack = tmp_path / "damaged" / "1" / "model.onnx.kernels"
    whole = pack.read_bytes()
    for at in (3, 200, len(whole) - 5):
        pack.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused = served(made, fake_cuda, folder=tmp_path / "damaged")
        assert refused.code == 1
        assert str(pack) in refused.error
    pack.unlink()
    assert "no fused ops are staged" in served(made, fake_cuda, folder=tmp_path / "damaged").error


def _without_onnxfuse() -> list[Any]:
    """Open both models in one process, each by its own library, as a server does; run them in turns."""
    made = Path(os.environ["EXPORTED"])
    sessions = []
    for name in ("chain", "other"):
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(str(made / name / LIBRARY))
        path = str(made / name / MODEL)
        sessions.append(onnxruntime.InferenceSession(path, options, providers=["CUDAExecutionProvider"]))
    x = np.arange(24, dtype=np.float32).reshape(3, 8) / 24
    b = np.full(8, -0.25, np.float32)
    feeds: list[dict[str, Any]] = [{"x": x, "b": b}, {"x": x}]
    answers = [s.run(None, f)[0].tolist() for _ in range(3) for s, f in zip(sessions, feeds, strict=True)]
    libraries = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libonnxfuse" in line}
    return [answers, sorted(libraries)]


def test_libraries_of_several_models_live_in_one_process(
    made: Path, on_fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its own pack; ops of the same names are each model's own. No onnxfuse is there."""
    monkeypatch.setenv("EXPORTED", str(made))
    answers, libraries = on_fake_cuda(_without_onnxfuse)
    assert libraries == [str(made / name / LIBRARY) for name in ("chain", "other")]
    x = np.arange(24, dtype=np.float32).reshape(3, 8) / 24
    expected = [-np.tanh(2 * np.maximum(x - 0.25, 0)), -np.tanh(2 * x)] * 3
    for answer, right_one in zip(answers, expected, strict=True):
        np.testing.assert_allclose(answer, right_one, atol=1e-6)


def test_the_manifest_tells_what_is_there(made: Path) -> None:
    folder = made / "chain"
    facts = json.loads((folder / "manifest.json").read_text())
    assert facts["architectures"] == ["sm_90a", "compute_86"]
    assert facts["ranges"] == {"N": [1, 8]}
    assert facts["use_tf32"]
    assert {(o["op"], o["runs_as"]) for o in facts["ops"]} == {
        ("BiasRelu_1", "kernel"), ("TwiceTanh_2", "kernel"), ("Negate_3", "kernel"),
    }  # fmt: skip
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert set(facts["files"]) == there - {"manifest.json"}
    for name, told in facts["files"].items():
        data = (folder / name).read_bytes()
        assert told == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is compiled be nothing."""
    monkeypatch.setattr(packing, "Workers", lambda processes: Workers(1))
    for name in ("compile", "portable"):
        monkeypatch.setattr(cuda, name, lambda kernel, arch: b"none")


def attention_with_tail() -> onnx.ModelProto:
    """Return an attention of 1000 keys, which ONNX Runtime's op computes faster, and a kernel's work behind it."""
    text = attention(batch="N", rows=1000, columns=1000, size=64)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model.graph.node[-1].output[0] = "attended"
    for node in (("Relu", "attended", "positive"), ("Tanh", "positive", "y")):
        model.graph.node.append(onnx.helper.make_node(node[0], [node[1]], [node[2]]))
    return onnxfuse.optimize(halved(model))


@pytest.mark.usefixtures("no_compiler")
def test_onnx_runtimes_own_ops_are_in_their_places(tmp_path: Path) -> None:
    """The file is what a session opens: it needs no Python to put them there."""
    made = attention_with_tail()
    exported = onnxfuse.export_library(made, tmp_path / "m", archs=["sm_90"])
    assert {(p.rule, p.runs_as, p.reason) for p in exported.placements} == {
        ("attention", "onnxruntime", ""), ("pointwise", "kernel", ""),
    }  # fmt: skip
    model = onnx.load(tmp_path / "m" / MODEL)
    assert [n.op_type for n in model.graph.node if n.domain == "com.microsoft"] == ["MultiHeadAttention"]
    assert [f.name for f in model.functions] == [p.op for p in exported.placements if p.runs_as == "kernel"]
    (attention_op,) = exported.made.library.items()
    opened = with_library_ops(made, onnxruntime.SessionOptions(), dict([attention_op]))
    assert model.graph.node == opened.graph.node


def test_an_op_with_kernels_on_some_gpus_stays_a_function_of_the_librarys_nodes() -> None:
    """Where a kernel is registered it runs, elsewhere ONNX Runtime's own op."""
    model = attention_with_tail()
    ops = {name: op for name, op in fused_ops(model).items() if op.rule == "attention"}
    (name,) = ops
    before = [n.op_type for n in model.graph.node]
    place_library_ops(model, ops, [name])
    assert [n.op_type for n in model.graph.node] == before
    (function,) = [f for f in model.functions if f.name == name]
    assert "MultiHeadAttention" in [n.op_type for n in function.node]
    assert "com.microsoft" in [o.domain for o in model.opset_import]
