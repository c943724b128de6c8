"""`python -m models`: what it writes, and what it says when it cannot."""

import importlib.util
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

import models
from models.__main__ import main

needs_torch = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")),
    reason="torch and transformers are not installed (extra `export`)",
)


def test_the_list_names_every_model() -> None:
    """One line per model: its name and what it is."""
    shown = CliRunner().invoke(main, ["--list"])
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.output.splitlines()] == list(models.ARCHITECTURES)


def test_the_command_writes_what_build_returns(tmp_path: Path) -> None:
    """Every option of the command is an argument of `models.build`."""
    out = tmp_path / "small.onnx"
    size = ["--layers", "1", "--hidden", "24", "--heads", "2", "--intermediate", "30", "--vocabulary", "50"]
    form = ["--dtype", "float16", "--batch", "2", "--sequence", "words", "--opset", "20", "--seed", "3"]
    done = CliRunner().invoke(main, ["bert_base", str(out), *size, *form], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert str(out) in done.output
    assert onnx.load(out) == models.build(
        "bert_base",
        layers=1,
        hidden=24,
        heads=2,
        intermediate=30,
        vocabulary=50,
        dtype="float16",
        batch=2,
        sequence="words",
        opset=20,
        seed=3,
    )


def test_stages_and_flags_are_options_too(tmp_path: Path) -> None:
    """ResNet takes its four stages, and `--folded`."""
    out = tmp_path / "small.onnx"
    size = ["--stages", "1", "1", "1", "1", "--width", "4", "--image", "32", "--folded"]
    done = CliRunner().invoke(main, ["resnet50", str(out), *size])
    assert done.exit_code == 0, done.output
    assert "BatchNormalization" not in {node.op_type for node in onnx.load(out).graph.node}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["bert_base", "{}/m.onnx", "--heads", "5"], 2, "hidden is 768, expected a multiple of heads"),
        (["mlp", "{}/m.onnx", "--opset", "9"], 2, "opset is 9"),
        (["mlp", "{}/m.onnx", "--dtype", "int8"], 2, "float16"),
        (["mpl", "{}/m.onnx"], 2, "mpl"),
        (["mlp", "{}/no/such/folder/m.onnx"], 3, "cannot be written"),
        pytest.param(["export", "mlp", "{}/no/such/folder/m.onnx"], 3, "cannot be written", marks=needs_torch),
    ],
)
def test_a_mistake_leaves_a_message_and_no_file(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    """Errors end with their exit code, say what to do, and write nothing."""
    done = CliRunner().invoke(main, [argument.format(tmp_path) for argument in arguments])
    assert done.exit_code == code
    assert words in done.output
    assert not list(tmp_path.iterdir())
