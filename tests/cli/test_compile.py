"""`onnxfuse compile` and `optimize --compile`: a pack beside the model, and what is told of it."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfuse
from onnxfuse import cuda
from onnxfuse.cuda.pack import file
from onnxfuse.runtime.packing import packing
from onnxfuse.support.errors import KernelError, ModelError, UsageError
from onnxfuse.support.process_pool import Workers
from tests.cli.conftest import Command


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is compiled be the kernel's name."""
    monkeypatch.setattr(packing, "Workers", lambda processes: Workers(1))
    for name in ("compile", "portable"):
        monkeypatch.setattr(cuda, name, lambda kernel, arch: f"{arch.name} {kernel.entry}".encode())


def compiled(command: Command, *arguments: Any) -> Any:
    result = command("compile", *arguments, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_a_pack_is_beside_the_model(folder: Path, onnxfuse_command: Command) -> None:
    """With the ranges that were given, the GPUs that were named, and every shape answered."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx").code == 0
    facts = compiled(onnxfuse_command, "out.onnx", "--arch", "sm_80,sm_90", "--shape", "N=1..64")
    assert (facts["target"], facts["ranges"], facts["assumed"]) == ("out.onnx.kernels", {"N": [1, 64]}, [])
    assert list(facts["targets"]) == ["sm_80", "sm_90a"]
    assert {p["left"] for p in facts["programs"]} == {0}
    assert {p["shapes"] for p in facts["programs"]} == {64}
    assert facts["bytes"] == (folder / "out.onnx.kernels").stat().st_size
    assert [t.name for t in file.opened(folder / "out.onnx.kernels", named=False).index.targets] == ["sm_80", "sm_90a"]


@pytest.mark.usefixtures("folder")
def test_what_is_assumed_is_said(onnxfuse_command: Command) -> None:
    """Without a GPU: all architectures, and PTX for later ones; a first dimension goes from 1 to 32."""
    onnxfuse_command("optimize", "in.onnx", "out.onnx")
    facts = compiled(onnxfuse_command, "out.onnx")
    assert (facts["ranges"], facts["assumed"]) == ({"N": [1, 32]}, ["N"])
    assert list(facts["targets"]) == [*(a.name for a in cuda.SUPPORTED), "compute_86"]
    out = onnxfuse_command("compile", "out.onnx", "--arch", "sm_89", "--shape", "N=8").out
    assert out.startswith("compiled: ")
    assert "N: 8..8" in out
    assert "combinations of 2 fused ops, sizes and GPU checked" in out
    assert "compute_86" not in out


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["out.onnx", "--shape", "M=1..8"], 2, "--shape M: the model has no dimension of that name. There are: N."),
        (["out.onnx", "--shape", "N=8..1"], 2, "'N=8..1' is reversed"),
        (["out.onnx", "--shape", "N=1,7"], 2, "kernels are compiled for a range"),
        (["out.onnx", "--arch", "h100"], 2, "--arch h100: is not of the form sm_90a"),
        (["out.onnx", "--arch", "sm_30"], 2, "--arch sm_30: the compiler knows no such architecture"),
        (["in.onnx"], 3, "in.onnx: has no fused ops, and needs no kernels"),
        (["out.onnx", "-o", "nowhere/x"], 3, "the folder nowhere does not exist"),
        (["none.onnx"], 3, "none.onnx"),
    ],
)
def test_what_cannot_be_compiled_is_told(
    arguments: list[str], code: int, words: str, onnxfuse_command: Command
) -> None:
    onnxfuse_command("optimize", "in.onnx", "out.onnx")
    result = onnxfuse_command("compile", *arguments)
    assert (result.code, words in result.err) == (code, True), result.err
    assert not list(Path().glob("*.kernels"))


def test_optimize_writes_both_or_nothing(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (
        "optimize",
        "in.onnx",
        "out.onnx",
        "--compile",
        "--arch",
        "sm_80",
        "--arch",
        "sm_90a",
        "--shape",
        "N=1..4",
    )
    result = onnxfuse_command(*arguments)
    assert result.code == 0, result.err
    assert "out.onnx.kernels" in result.out
    apart = compiled(onnxfuse_command, "out.onnx", "--arch", "sm_80, sm_90a", "--shape", "N=1..4", "-o", "again")
    assert (folder / "again").read_bytes() == (folder / "out.onnx.kernels").read_bytes()
    assert apart["bytes"] == (folder / "again").stat().st_size
    for left in ("out.onnx", "out.onnx.kernels"):
        (folder / left).unlink()

    def fail(*facts: Any) -> bytes:
        raise KernelError("no NVRTC here", "pip install 'onnxfuse[cuda]'")

    monkeypatch.setattr(cuda, "compile", fail)
    result = onnxfuse_command(*arguments)
    assert (result.code, "no NVRTC here" in result.err) == (5, True)
    assert sorted(p.name for p in folder.iterdir()) == ["again", "in.onnx"]
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--require", "softmax", "--compile")
    assert result.code == 4
    assert sorted(p.name for p in folder.iterdir()) == ["again", "in.onnx"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--undo", "--compile"], "--undo cannot be combined with any of"),
        (["--arch", "sm_80"], "--arch goes with"),
        (["--compile", "--dump", "d", "--shape", "N=3"], "ranges for --compile"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], words: str, onnxfuse_command: Command) -> None:
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", *options)
    assert (result.code, words in result.err) == (2, True), result.err


def test_explain_tells_what_a_pack_covers(folder: Path, onnxfuse_command: Command) -> None:
    """GPUs, ranges, kernels, size; of one that is not the model's, why, and the command that builds it again."""
    onnxfuse_command("optimize", "in.onnx", "out.onnx", "--compile", "--arch", "sm_90a", "--shape", "N=1..4")
    whole = (folder / "out.onnx.kernels").read_bytes()
    found = json.loads(onnxfuse_command("explain", "out.onnx", "--json").out)["kernels"]
    assert (found["ranges"], list(found["targets"]), found["fault"]) == ({"N": [1, 4]}, ["sm_90a"], "")
    assert found["bytes"] == len(whole)
    assert "kernels out.onnx.kernels: " in onnxfuse_command("explain", "out.onnx").out
    for data, words in (
        (whole[:-1], "says that it has"),
        (whole[:64] + b"?" * 32 + whole[96:], "was made by another version of onnxfuse"),
    ):
        (folder / "out.onnx.kernels").write_bytes(data)
        out = onnxfuse_command("explain", "out.onnx").out
        assert "not used: it" in out
        assert words in out
        assert "Build it again: onnxfuse compile out.onnx" in out
    (folder / "in.onnx.kernels").write_bytes(whole)
    onnx.save(onnx.load(folder / "in.onnx"), folder / "in.onnx")
    assert "kernels" in json.loads(onnxfuse_command("explain", "in.onnx", "--json").out)


@pytest.mark.usefixtures("folder")
def test_python_does_the_same(tmp_path: Path) -> None:
    model = onnxfuse.optimize("in.onnx")
    made = onnxfuse.compile(model, archs=["sm_90a"], shapes={"N": (1, 4)}, target=tmp_path / "x.kernels")
    assert made.target == tmp_path / "x.kernels"
    assert made.left == 0
    assert onnxfuse.compile(model, archs=["sm_90a"], shapes={"N": 4}, target="y").as_dict()["ranges"] == {"N": [4, 4]}
    with pytest.raises(UsageError, match="no path beside which"):
        onnxfuse.compile(model)
    with pytest.raises(UsageError, match="is not a range"):
        onnxfuse.compile(model, shapes={"N": (3, 2)}, target="y")
    with pytest.raises(ModelError, match="has no fused ops"):
        onnxfuse.compile("in.onnx")
