"""A model that ends the process, breaks the GPU or hangs gets a verdict, and the verdict names the op."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfuse
from onnxfuse.cli.main import main
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]
NORM = "fused op LayerNormalization_952f4fcf7a (norm) of rule layer_norm, made of LayerNormalization norm"


def crashing(
    how: str, which: str, op: str, *arguments: Any, python: Sequence[str] = (sys.executable, "-m")
) -> subprocess.CompletedProcess[str]:
    """Run the command line where sessions of models with `op` crash; no traceback and no talk of Python's own."""
    call = [*python, "tests.cli.crashing", how, which, op, *map(str, arguments)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "300"}
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=100, env=environment)
    assert "Traceback" not in done.stdout + done.stderr
    assert "excepthook" not in done.stderr
    return done


Crashing = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(name="crashing")
def warm_crashing(warm_python: Sequence[str]) -> Crashing:
    """Call it as the function of this name."""
    return partial(crashing, python=warm_python)


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
    ("hangs", "kernels", "LayerN", f"the fused model hangs: no sign of life for 4 s on normal x=1x2 r=1x3, in {NORM}"),
]


@pytest.mark.parametrize(("how", "which", "op", "told"), CRASHES)
def test_verify_names_the_op_that_crashes(
    fused: Path, how: str, which: str, op: str, told: str, crashing: Crashing
) -> None:
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


@pytest.mark.parametrize(("which", "op", "original"), [("plain", "Relu", True), ("kernels", "LayerN", False)])
def test_verify_tells_the_way_past_an_original_that_crashes(
    fused: Path, which: str, op: str, original: bool, crashing: Crashing
) -> None:
    """ONNX Runtime divides by 0 in a few models at sizes that nobody gives them."""
    assert fused
    done = crashing("SIGSEGV", which, op, "verify", "in.onnx", "out.onnx", "--time", "1")
    assert done.returncode == 1
    assert ("--shape" in done.stdout) is original


def test_guard_takes_back_what_crashes(fused: Path, onnxfuse_command: Command, crashing: Crashing) -> None:
    """And keeps the rest: the model that is written does not crash."""
    done = crashing("SIGSEGV", "kernels", "LayerN", "optimize", "in.onnx", "kept.onnx", "--guard", "--json")
    assert done.returncode == 0
    facts = json.loads(done.stdout)
    assert [(u["rule"], u["node"]) for u in facts["guard"]["undone"]] == [("layer_norm", "norm")]
    assert "SIGSEGV" in facts["guard"]["undone"][0]["fault"]
    assert facts["rules"] == {"linear": 1}
    assert onnxfuse_command("verify", "in.onnx", "kept.onnx").code == 0


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("command", ["bench", "profile"])
def test_what_has_no_verdict_of_its_own_names_the_op_that_crashes(command: str, crashing: Crashing) -> None:
    """In an error, with the exit code of a wrong model."""
    done = crashing("SIGABRT", "kernels", "LayerN", command, "in.onnx", "out.onnx", "--provider", "cpu")
    assert done.returncode == 1
    told = f"error: the fused model ends the process by SIGABRT (Aborted) on normal x=1x2 r=1x3, in {NORM}"
    assert done.stderr.startswith(told)


SETTINGS = [
    ("SIGABRT", "1 thread", "crashed", "it ends the process by SIGABRT (Aborted)"),
    ("gpu", "1 thread on 2x2", "crashed", "it breaks the GPU's context (an illegal memory access was"),
]


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(("how", "which", "kind", "reason"), SETTINGS)
def test_bench_leaves_out_a_setting_of_the_original_that_crashes(
    how: str, which: str, kind: str, reason: str, crashing: Crashing
) -> None:
    """The others are timed, at every shape; what was timed before it is kept, and the table says what is missing."""
    fast = ("--provider", "cpu", "--runs", "1", "--rounds", "1", "--shape", "N=1,2")
    done = crashing(how, "original", which, "bench", "in.onnx", "out.onnx", *fast, "--json")
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["blocks"]
    setting, _, shape = which.partition(" on ")
    (refused,) = second["refused"]
    assert (refused["model"], refused["setting"], refused["kind"]) == ("original", setting, kind)
    assert refused["reason"].startswith(reason)
    # A crash at the second shape says nothing of the first, whose times stand.
    assert first["refused"] == ([] if shape else [refused])
    every = {("original", "default"), ("original", "1 thread"), ("original", "2 threads"),
             ("fused", "default"), ("fused", "1 thread"), ("fused", "2 threads")}  # fmt: skip
    for block in (first, second):
        assert {(r["model"], r["setting"]) for r in (*block["rows"], *block["refused"])} == every


@pytest.mark.usefixtures("fused")
def test_bench_tells_in_the_table_what_is_left_out(crashing: Crashing) -> None:
    """A word in place of the times, why below, and what to do about it."""
    fast = ("--provider", "cpu", "--runs", "1", "--rounds", "1", "--patience", "3")
    done = crashing("hangs", "original", "1 thread", "bench", "in.onnx", "out.onnx", *fast)
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "original: 1 thread no answer" in lines
    assert "no answer original: 1 thread: it hangs: no sign of life for 3 s" in lines
    assert "to wait longer: --patience SECONDS" in lines


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(
    ("who", "setting", "told"),
    [("fused", "1 thread", "the fused model at 1 thread"), ("original", "default", "the original model")],
)
def test_bench_fails_where_what_it_needs_crashes(who: str, setting: str, told: str, crashing: Crashing) -> None:
    """The fused model at any setting is ours; without the original's default there is nothing to compare with."""
    done = crashing("SIGSEGV", who, setting, "bench", "in.onnx", "out.onnx", "--provider", "cpu")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {told} ends the process by SIGSEGV (Segmentation fault) on normal x=1x2")


@pytest.mark.usefixtures("fused")
def test_the_library_survives_what_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever calls it may hold a GPU: `verify` gives the report that the command gives, `bench` an error."""
    (tmp_path / "sitecustomize.py").write_text(
        "from tests.cli import crashing\ncrashing.install('SIGSEGV', 'kernels', 'LayerN')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    report = onnxfuse.verify("in.onnx", onnx.load("out.onnx"), providers=["CPUExecutionProvider"])
    assert not report.ok
    assert report.crash is not None
    assert report.summary.startswith(f"the fused model {SIGSEGV}")
    assert report.summary.endswith(f"in {NORM}")
    with pytest.raises(onnxfuse.CrashError, match=f"the fused model {re.escape(SIGSEGV)} .* in fused op LayerNorm"):
        onnxfuse.bench("in.onnx", "out.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.usefixtures("fused")
def test_in_a_process_that_is_not_ours_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that calls the library, or `main` with arguments, may hold a GPU."""
    monkeypatch.setattr(os, "fork", pytest.fail)
    with pytest.raises(SystemExit) as left:
        main(["verify", "in.onnx", "out.onnx", "--quiet"])
    assert not left.value.code
