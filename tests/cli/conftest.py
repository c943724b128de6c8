"""A folder with a model, and the command line in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse import cuda
from onnxfuse.cli.main import main
from onnxfuse.runtime.packing import packing
from onnxfuse.support.process_pool import Workers

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2] x, float[N,3] r) => (float[N,3] y)
<float[2,3] w = {1,-2,3,-4,5,-6}, float[3] b = {0.5,-1,2}, float[3] scale = {1,-0.5,2},
 float[3,3] v = {1,0,2,-1,1,0,3,1,-2}> {
  [product] m = MatMul (x, w)
  [bias] h = Add (b, m)
  [act] a = Relu (h)
  [residual] s = Add (a, r)
  [second] n = MatMul (s, v)
  [norm] y = LayerNormalization (n, scale)
}"""


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty but for the model in.onnx."""
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "in.onnx")
    return tmp_path


@pytest.fixture
def onnxfuse_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command line; a traceback is a failure of the test."""
    # Wide enough that no message is wrapped.
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: Any) -> Result:
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        code = left.value.code
        return Result(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is compiled be the kernel's name."""
    monkeypatch.setattr(packing, "Workers", lambda processes: Workers(1))
    for name in ("compile", "portable"):
        monkeypatch.setattr(cuda, name, lambda kernel, arch: f"{arch.name} {kernel.entry}".encode())
