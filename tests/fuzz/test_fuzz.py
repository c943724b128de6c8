"""The fuzzer itself: mutants are the same each time, and those that once brought something to light stay mended."""

from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from onnxfuse.support import isolation
from tests.fuzz.commands import FaultError, run
from tests.fuzz.kinds import KINDS
from tests.fuzz.worker import mutant

FOUND = (
    "bytes:1:79", "bytes:1:110", "bytes:1:181", "bytes:1:239", "bytes:2:28", "bytes:2:91", "bytes:2:120",
    "bytes:12:120", "structure:1:48", "structure:1:172", "structure:12:21", "structure:4:4", "structure:5:7",
    "structure:7:113", "structure:32:423", "structure:33:110", "structure:33:392", "structure:34:61",
    "fused:33:352",
    "fused:1:6", "fused:1:14", "fused:1:64", "fused:1:112", "fused:1:141", "fused:1:148", "fused:1:165",
    "rules:1:7", "rules:1:145", "rules:1:236", "rules:7:81", "rules:11:87", "rules:35:426", "toml:1:114",
)  # fmt: skip
"""Mutants that made a traceback, or were obeyed by the terminal; one of each kind of fault."""


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(isolation._State, "may_fork", True)  # as the command does
    return tmp_path


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(empty: Path, name: str) -> None:
    """An answer with its exit code, no traceback, no stray file."""
    kind, seed, number = name.split(":")
    assert KINDS[kind].attempt(mutant(kind, int(seed), int(number)), empty).startswith("exit ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutant_has_a_name(kind: str) -> None:
    """By which it is made again."""
    assert mutant(kind, 1, 5) == mutant(kind, 1, 5)
    assert len({mutant(kind, 1, n) for n in range(20)}) > 10


def test_texts_need_not_be_utf_8(empty: Path) -> None:
    """ONNX Runtime opens a model with such ones."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g () => (string[2] y) { t = Identity(s)  y = StringNormalizer(t) }'
    )
    strings: Any = [b"\xff\xfe", b"\x1b"]
    model.graph.initializer.append(onnx.helper.make_tensor("s", onnx.TensorProto.STRING, [2], strings))
    assert KINDS["structure"].attempt(model.SerializeToString(), empty) == "exit 0"


def test_a_traceback_is_seen(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer can fail."""
    from onnxfuse.passes import pipeline

    def fail(*_: object, **__: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(pipeline, "run", fail)
    (empty / "in.onnx").write_bytes(KINDS["structure"].make.__globals__["seeds"]()[0])
    with pytest.raises(FaultError, match=r"traceback: .*KeyError"):
        run("optimize", "in.onnx", "out.onnx")
