"""The command line as a whole: help, version, unknown commands, and what an import costs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import onnxfuse
from onnxfuse.options import COMMANDS
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_every_command_has_help(onnxfuse_command: Command, command: tuple[str, ...]) -> None:
    """The first line of the text says what it is for."""
    result = onnxfuse_command(*command, "--help")
    assert result.code == 0
    assert result.out.startswith("Usage: ")


def test_the_exit_codes_are_in_the_help(onnxfuse_command: Command) -> None:
    """They are a promise to scripts."""
    out = " ".join(onnxfuse_command("--help").out.split())
    for words in ("0 ok", "1 numerical mismatch", "2 usage", "3 unreadable", "4 expectation not met", "5 environment"):
        assert words in out


def test_the_version_is_the_packages(onnxfuse_command: Command) -> None:
    """One place says it."""
    assert onnxfuse.__version__ in onnxfuse_command("--version").out


def test_an_unknown_command_is_exit_2(onnxfuse_command: Command) -> None:
    """And names what was typed, with the command that it is nearest to."""
    result = onnxfuse_command("optimise")
    assert result.code == 2
    assert "No such command 'optimise'. Did you mean 'optimize'?" in result.err
    assert "Did you mean" not in onnxfuse_command("xyz").err


def test_a_usage_error_is_json_where_json_is_asked_for(onnxfuse_command: Command) -> None:
    """Scripts read one format whatever happens."""
    result = onnxfuse_command("optimize", "--json")
    assert result.code == 2
    facts = json.loads(result.out)
    assert (facts["ok"], facts["exit_code"]) == (False, 2)
    assert "IN.onnx" in facts["error"]


def test_help_needs_neither_onnx_nor_cuda() -> None:
    """It answers at once, on any machine."""
    script = """
import sys
from onnxfuse.cli import main
try:
    main(["--help"])
finally:
    assert not {"onnx", "onnxruntime", "cupy", "numpy"} & set(sys.modules), sorted(sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_verbose_tells_each_step_and_its_time(folder: Path, onnxfuse_command: Command) -> None:
    """On standard error, of the commands that draw a bar, too; what they print on standard output is the same."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx", "-v").code == 0
    for call in (["verify", "in.onnx", "out.onnx"], ["bench", "in.onnx", "out.onnx", "--runs", "1", "--rounds", "2"]):
        done = onnxfuse_command(*call, "--provider", "cpu", "-v")
        steps = re.findall(r"^(.+): \d+\.\d\d s$", done.err, flags=re.MULTILINE)
        assert done.code == 0
        assert len(steps) >= 3
        assert len(steps) == len(done.err.splitlines())


@pytest.mark.parametrize("command", ["optimize", "verify", "bench", "profile", "compile", "export-library"])
def test_an_option_is_spelled_alike_everywhere(onnxfuse_command: Command, command: str) -> None:
    """Whoever learned --shape or --shapes, --provider or --providers of one command has learned it of all."""
    told = onnxfuse_command(command, "--help").out
    assert ("--shapes" in told, "--shape" in told) == (True, True)
    assert ("--provider " in told or "--provider," in told) == ("--providers" in told)
