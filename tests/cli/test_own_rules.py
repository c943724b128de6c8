"""A model that was made with rules of one's own is verified and timed as `onnxfuse.session(rules=...)` opens it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse import runtime
from onnxfuse.model.fused import DOMAIN
from onnxfuse.rules.language import rule_file
from tests.cli.conftest import Command

OWN = '''summary = "A Relu of a sum, as one op."
[fuse]
template = "pointwise"
least = 0
[[fuse.anchor]]
pattern = """(x, y) => (z) { a = Add (x, y)  z = Relu (a) }"""
'''

SUM = """<ir_version: 10, opset_import: ["": 21]>
g (float[N,8] x, float[N,8] y) => (float[N,8] z) { a = Add (x, y)  z = Relu (a) }"""


@pytest.mark.parametrize(
    "command", [("verify",), ("bench", "--provider", "cpu", "--runs", 1, "--rounds", 1)], ids=["verify", "bench"]
)
def test_the_session_is_opened_with_the_rules(
    command: Sequence[Any], folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one of them writes its op through the library's, that is what runs, and no body."""
    (folder / "mine").mkdir()
    (folder / "mine" / "relu_of_sum.toml").write_text(OWN)
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx", "--rules", "mine").code == 0
    asked: list[Sequence[str | Path]] = []
    session = runtime.session

    def opened(*arguments: Any, **options: Any) -> Any:
        asked.append(tuple(options.get("rules", ())))
        return session(*arguments, **options)

    monkeypatch.setattr(runtime, "session", opened)
    name, *options = command
    done = onnxfuse_command(name, "in.onnx", "out.onnx", *options, "--rules", "mine")
    assert done.code == 0, done.err
    assert asked
    assert set(asked) == {(Path("mine"),)}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_folder_that_is_none_is_told_first(command: str, onnxfuse_command: Command) -> None:
    """On the CPU too, where no rule is asked for anything."""
    done = onnxfuse_command(command, "in.onnx", "in.onnx", "--rules", "mine")
    assert done.code != 0
    assert "mine: no such folder of rules" in done.err


def test_a_rule_that_takes_the_place_of_one_of_ours_is_told(folder: Path, onnxfuse_command: Command) -> None:
    """A file of that name may be there by mistake, and what ours fuses is then left; without it nothing is told."""
    (folder / "mine").mkdir()
    (folder / "mine" / "gemm.toml").write_text(OWN)
    for command in (("optimize", "in.onnx", "out.onnx"), ("explain", "in.onnx")):
        told = onnxfuse_command(*command, "--rules", "mine").out
        assert "note: mine/gemm.toml overrides the shipped rule gemm" in told
        assert "takes the place" not in onnxfuse_command(*command).out
        assert "takes the place" not in onnxfuse_command(*command, "--rules", rule_file.shipped_folder() / "gemm").out


def test_what_to_do_next_has_the_rules_again(folder: Path, onnxfuse_command: Command) -> None:
    """Commands that are printed do what they are said to do; of an op whose rule is not given, that is told."""
    onnx.save(onnx.parser.parse_model(SUM), folder / "in.onnx")
    (folder / "my rules").mkdir()
    (folder / "my rules" / "relu_of_sum.toml").write_text(OWN)
    done = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--rules", "my rules", "--only", "relu_of_sum")
    assert "next: onnxfuse verify in.onnx out.onnx --rules 'my rules'" in done.out
    assert "why not more: onnxfuse explain in.onnx --rules 'my rules' --only relu_of_sum" in done.out
    (op,) = [n for n in onnx.load("out.onnx").graph.node if n.domain == DOMAIN]
    told = onnxfuse_command("explain", "out.onnx", "--at", op.output[0]).out.splitlines()[0]
    assert "made by rule 'relu_of_sum', which is not given here: --rules FOLDER" in told
    assert "; without it, pointwise took it with" in told
    told = onnxfuse_command("explain", "out.onnx", "--at", op.output[0], "--rules", "my rules").out.splitlines()[0]
    assert "not given here" not in told
    assert "without it" not in told


def test_what_to_do_next_can_be_pasted(folder: Path, onnxfuse_command: Command) -> None:
    """Names with spaces are quoted, and each command names its model."""
    (folder / "in.onnx").rename(folder / "my model.onnx")
    out = onnxfuse_command("optimize", "my model.onnx", "out 1.onnx", "--skip", "linear").out
    assert "next: onnxfuse verify 'my model.onnx' 'out 1.onnx'\n" in out
    assert "onnxfuse explain 'my model.onnx' --at NODE --skip linear\n" in out
    assert "why not more: onnxfuse explain 'my model.onnx' --skip linear\n" in out
