"""The schema of options: whole, consistent, and the same for Python, the command line and onnxfuse.toml."""

import importlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest

import onnxfuse
from onnxfuse.cli.base.command import SchemaCommand
from onnxfuse.cli.base.foreign_flags import FLAGS
from onnxfuse.contract.config import read
from onnxfuse.options import COMMANDS, groups, schema, toml
from onnxfuse.support import manual
from tests.cli.conftest import Command


def test_help_does_not_import_onnx(onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help and completion wait for nothing: a command's module is imported when it runs."""

    def imported(name: str) -> Any:
        raise AssertionError(name)

    monkeypatch.setattr(importlib, "import_module", imported)
    for name in COMMANDS:
        with click.Context(SchemaCommand(name)) as context:
            assert "--traceback" in SchemaCommand(name).get_help(context)


def test_an_error_names_an_option_as_its_caller_knows_it(folder: Path, onnxfuse_command: Command) -> None:
    """The flag on the command line, the keyword in Python; a command in it keeps its flags."""
    with pytest.raises(onnxfuse.UsageError, match=r"^'linear' applies without `also`, which is for optional rules"):
        onnxfuse.optimize(folder / "in.onnx", also=["linear"])
    assert (
        "'linear' applies without --also" in onnxfuse_command("optimize", "in.onnx", "o.onnx", "--also", "linear").err
    )
    with pytest.raises(onnxfuse.UsageError, match=r"^tolerance goes with precision$"):
        onnxfuse.optimize(folder / "in.onnx", tolerance=0.1)
    told = onnxfuse_command("optimize", "in.onnx", "o.onnx", "--tolerance", "0.1")
    assert "--tolerance goes with --precision" in told.err


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_of_another_tool_has_what_takes_its_place(onnxfuse_command: Command, flag: str) -> None:
    """Only flags that the page about that tool has, and only options that there are."""
    assert flag.removeprefix("--") in manual.text("from-trtexec")
    told = onnxfuse_command("explain", "in.onnx", flag, "8")
    assert told.code == 2
    assert told.err.endswith(f"{FLAGS[flag]}\n")
    assert json.loads(onnxfuse_command("explain", "in.onnx", flag, "--json").out)["hint"] == FLAGS[flag]
    known = {opt for name in COMMANDS for p in SchemaCommand(name).params for opt in p.opts}
    assert set(re.findall(r"--[a-z][\w-]*", FLAGS[flag])) <= known


def test_a_flag_with_a_slip_has_the_closest_one(onnxfuse_command: Command) -> None:
    """No others; and a value that a precision cannot be says how one gets there."""
    told = onnxfuse_command("optimize", "in.onnx", "--precison", "float16").err
    assert told.endswith("No such option '--precison'. Did you mean '--precision'?\n")
    told = onnxfuse_command("optimize", "in.onnx", "--precision", "int8").err
    assert "fp16 and bf16 mean float16 and bfloat16. For int8, quantize the model first" in told


def test_a_reversed_range_and_a_missing_word_are_told_plainly(onnxfuse_command: Command) -> None:
    told = onnxfuse_command("compile", "in.onnx", "--shape", "batch=32..1").err
    assert "'batch=32..1' is reversed: the smaller size comes first, batch=1..32" in told
    assert onnxfuse_command("completion").err.endswith("Choose from:\n  bash,\n  zsh,\n  fish\n")


def test_short_names_of_types_mean_the_same_everywhere(folder: Path, onnxfuse_command: Command) -> None:
    """fp16 and bf16 on the command line, in Python and in onnxfuse.toml; messages name the words."""
    call = ("config", "--json", "optimize", "in.onnx", "o.onnx", "--precision", "fp16", "--io-precision", "fp32")
    values = {one["option"]: one["value"] for one in json.loads(onnxfuse_command(*call).out)["options"]}
    assert (values["precision"], values["io_precision"]) == ("float16", "float32")
    assert schema.fields(groups.Optimizing)["precision"].kind.read("precision", "bf16") == "bfloat16"
    (folder / "onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\nprecision = "bf16"\n')
    assert read(folder / "onnxfuse.toml").models[0].options["precision"] == "bfloat16"
    jsonschema.validate(tomllib.loads((folder / "onnxfuse.toml").read_text()), toml.json_schema())
    assert "'fp32' is not one of" in onnxfuse_command("optimize", "in.onnx", "o.onnx", "--precision", "fp32").err
