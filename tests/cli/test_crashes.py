"""A model that ends the process, breaks the GPU or hangs gets a verdict, and the verdict names the op."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.cli.main import main
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]
NORM = "fused op LayerNormalization_952f4fcf7a (norm) of rule layer_norm, made of LayerNormalization norm"


def crashing(how: str, which: str, op: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line where sessions of models with `op` crash; no traceback and no talk of Python's own."""
    call = [sys.executable, "-m", "tests.cli.crashing", how, which, op, *map(str, arguments)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "300"}
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=100, env=environment)
    assert "Traceback" not in done.stdout + done.stderr
    assert "excepthook" not in done.stderr
    return done


@pytest.fixture
def fused(folder: Path, onnxfuse_command: Command) -> Path:
    """The folder with out.onnx, too: a MatMul, a fused Add, Relu and Add, a MatMul and a fused norm."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx").code == 0
    return folder


SIGSEGV, SIGKILL = (
    "ends the process by SIGSEGV (Segmentation fault)",
    "is killed by the system (SIGKILL), as it does when",
)
GPU = "breaks the GPU's context (an illegal memory access was encountered, CUDA error 700)"
CRASHES = [
    ("SIGSEGV", "kernels", "LayerN", f"the fused model {SIGSEGV} on normal x=1x2 r=1x3, in {NORM}"),
    (
        "SIGKILL",
        "opening",
        "Linear_AddRelu",
        f"the fused model {SIGKILL} memory runs out on normal x=1x2 r=1x3, in fused op",
    ),
    ("SIGSEGV", "plain", "Relu", f"the original model {SIGSEGV} on normal x=1x2 r=1x3, in Relu (act)"),
    ("gpu", "kernels", "LayerN", f"the fused model {GPU} on normal x=1x2 r=1x3, in {NORM}"),
    ("hangs", "kernels", "LayerN", f"the fused model hangs: no word for 4 s on normal x=1x2 r=1x3, in {NORM}"),
]


@pytest.mark.parametrize(("how", "which", "op", "told"), CRASHES)
def test_verify_names_the_op_that_crashes(fused: Path, how: str, which: str, op: str, told: str) -> None:
    """Exit 1, the op and the inputs on the terminal, in JSON and in JUnit; --bisect has nothing to add."""
    options = ("--json", "--junit", "j.xml", "--bisect", "found", "--time", "1")
    done = crashing(how, which, op, "verify", "in.onnx", "out.onnx", *options)
    assert done.returncode == 1
    facts = json.loads(done.stdout)
    assert facts["ok"] is False
    assert facts["summary"].startswith(told)
    assert facts["problems"] == [facts["summary"]]
    assert facts["crash"]["node"]["output"] == {"LayerN": "y", "Linear_AddRelu": "s", "Relu": "a"}[op]
    assert facts["crash"]["node"]["node"] in (fused / "j.xml").read_text()


def test_guard_takes_back_what_crashes(fused: Path, onnxfuse_command: Command) -> None:
    """And keeps the rest: the model that is written does not crash."""
    done = crashing("SIGSEGV", "kernels", "LayerN", "optimize", "in.onnx", "kept.onnx", "--guard", "--json")
    assert done.returncode == 0
    facts = json.loads(done.stdout)
    assert [(u["rule"], u["node"]) for u in facts["guard"]["undone"]] == [("layer_norm", "norm")]
    assert "SIGSEGV" in facts["guard"]["undone"][0]["fault"]
    assert facts["rules"] == {"linear": 1}
    assert onnxfuse_command("verify", "in.onnx", "kept.onnx").code == 0


@pytest.mark.usefixtures("fused")
def test_bench_names_the_op_that_crashes() -> None:
    """It has no verdict of its own: the error names it, and the exit code is that of a wrong model."""
    done = crashing("SIGABRT", "kernels", "LayerN", "bench", "in.onnx", "out.onnx", "--provider", "cpu")
    assert done.returncode == 1
    told = f"error: the fused model ends the process by SIGABRT (Aborted) on normal x=1x2 r=1x3, in {NORM}"
    assert done.stderr.startswith(told)


@pytest.mark.usefixtures("fused")
def test_in_a_process_that_is_not_ours_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that calls the library, or `main` with arguments, may hold a GPU."""
    monkeypatch.setattr(os, "fork", pytest.fail)
    with pytest.raises(SystemExit) as left:
        main(["verify", "in.onnx", "out.onnx", "--quiet"])
    assert not left.value.code
