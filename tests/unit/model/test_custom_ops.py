"""Operators of a user's own library: loaded wherever a model runs, left alone by the rules, told of in the verdict."""

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.cli.main import main
from onnxfuse.model import custom_ops
from onnxfuse.model.fused import DOMAIN

ENGINE = Path(__file__).parents[3] / "engine"

MODEL = """
<ir_version: 10, opset_import: ["" : 20, "my.ops" : 1]>
g (float[N, 8] x) => (float[N, 8] y)
<float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}>
{
  a = Add(x, b)
  t = Tanh(a)
  q = my.ops.Bend(t)
  s = Sigmoid(q)
  y = Mul(s, q)
}"""
HALF = """
<ir_version: 10, opset_import: ["" : 20, "my.ops" : 1]>
g (float16[N, 8] x) => (float16[N, 8] y)
{
  a = Relu(x)
  t = Tanh(a)
  q = my.ops.Keep(t)
  y = Sigmoid(q)
}"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library of bend.cpp, as a user builds one."""
    built = tmp_path_factory.mktemp("own") / "bend.so"
    source = Path(__file__).parent / "bend.cpp"
    subprocess.run(
        ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{ENGINE}", "-o", built, source], check=True, timeout=100
    )
    return built


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model with an operator of the user's own in its midst."""
    file = tmp_path / "own.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), file)
    return file


def run(*words: object) -> int:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as left:
        main([str(w) for w in words])
    return int(left.value.code or 0)


def test_it_is_fused_around_and_verified(model: Path, library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The library tells the type of what its operator gives, so what comes after fuses, too."""
    fused = model.with_name("fused.onnx")
    assert run("optimize", model, fused, "--guard", "--custom-ops", library) == 0
    nodes = onnx.load(fused).graph.node
    assert [(n.domain, n.op_type) for n in nodes if n.domain != DOMAIN] == [("my.ops", "Bend")]
    assert len(nodes) == 3
    assert "2 fused ops checked" in capsys.readouterr().out
    assert run("verify", model, fused, "--custom-ops", library) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "error against float64" in told
    assert (
        "my.ops.Bend (node 'q') is from a custom-op library: the reference there is its own result in float32" in told
    )


def test_a_wrong_fusion_beside_it_is_found(model: Path, library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the operator gives is in both models: what else is another is told."""
    wrong = onnx.load(model)
    next(n for n in wrong.graph.node if n.op_type == "Sigmoid").op_type = "HardSigmoid"
    onnx.save(wrong, model.with_name("wrong.onnx"))
    assert run("verify", model, model.with_name("wrong.onnx"), "--custom-ops", library) == 1
    assert "MISMATCH" in capsys.readouterr().out


@pytest.mark.parametrize("truth", ["float64", "float32"])
def test_half_precision_operators_run_in_their_own_type(
    tmp_path: Path, library: Path, truth: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A library may know float16 alone, whatever the truth computes in."""
    file = tmp_path / "half.onnx"
    onnx.save(onnx.parser.parse_model(HALF), file)
    assert run("verify", file, file, "--custom-ops", library, "--truth", truth, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert report["truth"]["kind"] == truth


def test_without_the_library_every_command_says_what_is_missing(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator, its domain, and the option."""
    for words in (("verify", model, model), ("bench", model, "--runs", 1), ("profile", model),
                  ("optimize", model, model.with_name("o.onnx"), "--precision", "float16")):  # fmt: skip
        assert run(*words) != 0
        told = capsys.readouterr().err
        assert "operator Bend of domain 'my.ops' is neither ONNX Runtime's nor in a library that was given" in told
        assert "--custom-ops" in told
    assert run("optimize", model, model.with_name("o.onnx")) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "opens neither the model nor the optimized one: operator Bend of domain 'my.ops' is not one of its own" in told
    )
    assert "--custom-ops LIBRARY.so" in told


def test_bench_profile_and_lower_precision(model: Path, library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They load the library as verify does."""
    assert run("bench", model, "--custom-ops", library, "--runs", 2, "--rounds", 2) == 0
    assert run("profile", model, "--custom-ops", library, "--runs", 1) == 0
    low = model.with_name("low.onnx")
    assert run("optimize", model, low, "--custom-ops", library, "--precision", "float16") == 0
    assert run("verify", model, low, "--custom-ops", library) == 0
    assert "ok in float16" in capsys.readouterr().out


def test_ci_takes_it_from_the_command_line_alone(
    model: Path, library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of settings never loads a program."""
    config = model.with_name("onnxfuse.toml")
    config.write_text('[[model]]\npath = "own.onnx"\nrequire = { pointwise = 2 }\n')
    assert run("ci", config, "--custom-ops", library) == 0
    config.write_text(f'[[model]]\npath = "own.onnx"\ncustom_ops = ["{library}"]\n')
    assert run("ci", config) == 2
    assert "'custom_ops' is not a key" in capsys.readouterr().err


@pytest.mark.parametrize("isolate", [True, False])
def test_from_python(model: Path, library: Path, isolate: bool) -> None:
    """In the caller's process and in one of its own; the session computes the operator."""
    made = onnxfuse.optimize(model, custom_ops=[library])
    assert [n.op_type for n in made.graph.node if n.domain == "my.ops"] == ["Bend"]
    assert onnxfuse.verify(model, made, custom_ops=[library], isolate=isolate).ok
    assert custom_ops.libraries() == ()
    x = np.linspace(-3, 3, 16, dtype=np.float32).reshape(2, 8)
    (y,) = onnxfuse.session(made, ["CPUExecutionProvider"], custom_ops=[library]).run(None, {"x": x})
    t = np.tanh(x + np.arange(1, 9))
    q = t * np.abs(t)
    np.testing.assert_allclose(y, q / (1 + np.exp(-q)), rtol=1e-5)


def test_a_library_that_is_none_is_told(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, and a file that is no library: before anything is written."""
    text = tmp_path / "text.so"
    text.write_text("no library")
    assert run("verify", model, model, "--custom-ops", tmp_path / "nope.so") == 2
    assert "no such file" in capsys.readouterr().err
    assert run("verify", model, model, "--custom-ops", text) == 2
    assert "text.so" in capsys.readouterr().err
    with pytest.raises(onnxfuse.UsageError, match="no such file"):
        onnxfuse.optimize(model, custom_ops=["nope.so"])
