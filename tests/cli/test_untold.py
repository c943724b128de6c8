"""What several models and reports leave where nothing can be told, and where the command ends early."""

import gc
import shlex
import subprocess
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.api.optimize import optimizing
from onnxfuse.cli.main import main
from tests.cli.test_manners import environment


@pytest.mark.parametrize(
    "call",
    [
        "optimize in.onnx other.onnx -o new", "optimize . -o new", "optimize in.onnx other.onnx --in-place",
        "optimize in.onnx other.onnx -o new --compile --arch sm_90a", "optimize --undo in.onnx other.onnx -o new",
        "optimize in.onnx other.onnx -o new --external-data", "optimize in.onnx broken.onnx -o new",
        "verify in.onnx other.onnx --provider cpu --save-inputs new --junit new.xml",
        "profile in.onnx --provider cpu --runs 1 --report new.html",
        "bench in.onnx --provider cpu --runs 1 --junit new.xml",
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [">/dev/full", "--json >/dev/full"])
def test_of_several_none_is_written_that_cannot_be_told(
    folder: Path, warm_onnxfuse: Sequence[str], call: str, stream: str
) -> None:
    """The law of one model is that of a folder, and of reports: exit 5, and everything is as it was."""
    (folder / "other.onnx").write_bytes((folder / "in.onnx").read_bytes())
    (folder / "broken.onnx").write_bytes(b"no model")

    def files() -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    before = files()
    done = subprocess.run(
        f"{shlex.join(warm_onnxfuse)} {call} {stream}", shell=True, cwd=folder, env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "No space left" in done.stderr) == (5, True), done.stderr
    assert (files(), (folder / "new").exists()) == (before, False)


def test_several_are_held_in_files_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a model waits for its place none of it is in memory; what is done at an early end stays."""
    alive: list[weakref.ref[Any]] = []
    made = optimizing.Optimized.opens

    def opens(self: optimizing.Optimized) -> Any:
        gc.collect()
        assert not [ref for ref in alive if ref() is not None], "the model before this one"
        alive.append(weakref.ref(self))
        if len(alive) == 3:
            raise KeyboardInterrupt
        return made(self)

    monkeypatch.setattr(optimizing.Optimized, "opens", opens)
    for name in "abc":
        (folder / f"{name}.onnx").write_bytes((folder / "in.onnx").read_bytes())
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        main(["optimize", *(str(folder / f"{n}.onnx") for n in "abc"), "-o", str(folder / "new")])
    capsys.readouterr()
    assert sorted(p.name for p in (folder / "new").iterdir()) == ["a.onnx", "b.onnx"]
