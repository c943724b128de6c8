"""The schema of options: whole, consistent, and the same for Python, the command line and onnxfuse.toml."""

import importlib
import json
import tomllib
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest

import onnxfuse
from onnxfuse.cli.base.command import SchemaCommand
from onnxfuse.contract.config import read
from onnxfuse.options import COMMANDS, groups, schema, toml
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
