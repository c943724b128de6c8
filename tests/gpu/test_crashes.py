"""A kernel that writes where no memory is: the verdict comes, and names the op."""

import json
import os
from pathlib import Path

import onnx
import pytest

import onnxfuse

# pytest finds a fixture by the name of a parameter, which is that of the import (F811).
from tests.cli.conftest import Command, folder, onnxfuse_command  # noqa: F401  # fixtures
from tests.cli.test_crashes import NORM, ROOT, crashing

pytestmark = pytest.mark.gpu


def test_an_illegal_access_gets_a_verdict(folder: Path, onnxfuse_command: Command) -> None:  # noqa: F811 - a fixture
    """CUDA refuses every call after it in that process; the commands do their looking in others."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx").code == 0
    done = crashing("illegal", "kernels", "LayerN", "verify", "in.onnx", "out.onnx", "--json", "--provider", "cuda")
    assert done.returncode == 1, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert facts["summary"].startswith("the fused model breaks the GPU's context (an illegal memory access")
    assert facts["summary"].endswith(f"in {NORM}")
    done = crashing("illegal", "kernels", "LayerN", "bench", "in.onnx", "out.onnx", "--provider", "cuda")
    assert done.returncode == 1, done.stdout + done.stderr
    assert NORM in done.stderr
    done = crashing("illegal", "kernels", "LayerN", "optimize", "in.onnx", "kept.onnx", "--guard", "--json")
    assert done.returncode == 0, done.stderr
    assert [u["rule"] for u in json.loads(done.stdout)["guard"]["undone"]] == ["layer_norm"]
    assert onnxfuse_command("verify", "in.onnx", "kept.onnx").code == 0


def test_a_setting_of_the_original_that_breaks_the_gpu_is_left_out(
    folder: Path,  # noqa: F811 - a fixture
    onnxfuse_command: Command,  # noqa: F811 - a fixture
) -> None:
    """In another child the GPU is as it was: the rest of the race is run there."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx").code == 0
    call = ("bench", "in.onnx", "out.onnx", "--provider", "cuda", "--shape", "N=1,2", "--json")
    done = crashing("illegal", "original", "CUDA graph on 2x2", *call)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = json.loads(done.stdout)["blocks"]
    assert first["refused"] == []
    (refused,) = second["refused"]
    assert (refused["setting"], refused["kind"]) == ("CUDA graph", "crashed")
    assert "illegal memory access" in refused["reason"]
    assert {(r["model"], r["setting"]) for r in second["rows"]} == {
        ("original", "default"), ("fused", "default"), ("fused", "CUDA graph")
    }  # fmt: skip


@pytest.mark.usefixtures("folder")
def test_a_caller_that_holds_the_gpu_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` from Python beside the caller's own context: the crash is a report, and the caller computes on."""
    import cupy

    mine = cupy.arange(5)
    onnx.save(onnxfuse.optimize("in.onnx"), "out.onnx")
    (tmp_path / "sitecustomize.py").write_text(
        "from tests.cli import crashing\ncrashing.install('illegal', 'kernels', 'LayerN')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    report = onnxfuse.verify("in.onnx", "out.onnx", providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert report.crash is not None
    assert report.summary.endswith(f"in {NORM}")
    assert int(mine.sum()) == 10
