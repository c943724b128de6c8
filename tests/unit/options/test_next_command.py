"""Commands that a result suggests name again what decided about the model."""

import shlex
from pathlib import Path

import pytest

from onnxfuse.cli.base.command import SchemaCommand
from onnxfuse.options.commands import GROUPS
from onnxfuse.options.groups import CPU, Optimizing
from onnxfuse.options.next_command import next_command
from onnxfuse.options.schema import fields

VALUES = {
    "rules": (Path("my rules"),),
    "only": ("gemm", "row"),
    "skip": ("layer_norm",),
    "also": ("product",),
    "custom_ops": (Path("lib.so"),),
    "precision": "float16",
    "inputs": (Path("a b.npz"),),
    "tolerance": 0.01,
    "io_precision": "float16",
    "keep_fp32": ("head/*",),
    "seconds": 20.0,
    "tuning": Path("times.json"),
    "shapes": {"batch": (2,), "x": (1, 3, 4)},
    "strict_fp32": True,
    "freeze_initializers": True,
}
"""A value for each option that decides how `optimize` makes a model."""

CHECKED_AFTERWARDS = {"require", "guard"}
"""Options of `optimize` that judge the model that the others make: `explain` says what these others make of it."""


def test_what_made_a_model_is_named_again_by_explain() -> None:
    """Whatever decides how a model is made is an option of `explain`, and the suggested command has it."""
    assert VALUES.keys() == fields(Optimizing).keys() - CHECKED_AFTERWARDS
    command = shlex.split(next_command("explain", "in.onnx", given=VALUES))
    assert command[:3] == ["onnxfuse", "explain", "in.onnx"]
    parsed = SchemaCommand("explain").make_context("explain", [*command[3:], __file__]).params
    assert {name: parsed[name] for name in VALUES} == VALUES


@pytest.mark.parametrize("name", ["explain", "verify", "profile", "optimize", "bench"])
def test_a_suggested_command_can_be_typed(name: str) -> None:
    """Options that a command does not have, or that lack the one they need, are left out."""
    given = {**VALUES, "precision": None, "guard": False, "providers": CPU, "near": True, "output": Path("x")}
    command = shlex.split(next_command(name, "in.onnx", "out.onnx", given=given))
    assert command[2:4] == ["in.onnx", "out.onnx"]
    flags = {word for word in command if word.startswith("--")}
    assert flags <= {flag for one in fields(GROUPS[name]).values() for flag in one.flags}
    assert not flags & {"--near", "--output", "--tolerance"}
    assert ("--provider" in flags or "--providers" in flags) == ("providers" in fields(GROUPS[name]))
    assert ("--inputs" in flags) == (name == "verify")


def test_ranges_and_names_are_written_as_a_shell_takes_them() -> None:
    """A range has its ends; what a shell would split is quoted; defaults are left out."""
    given = {"shapes": {"batch": range(1, 33)}, "skip": (), "strict_fp32": False}
    written = next_command("explain", "my model.onnx", given=given)
    assert written == "onnxfuse explain 'my model.onnx' --shape batch=1..32"
