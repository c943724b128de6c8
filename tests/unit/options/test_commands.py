"""Every command has its module, and no flag twice."""

import importlib

import pytest

from onnxfuse.cli.base.command import SchemaCommand
from onnxfuse.options import COMMANDS
from onnxfuse.options.commands import GROUPS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_module_and_no_flag_twice(name: str) -> None:
    """Each is a function of a module of its own; what it takes is declared."""
    module = importlib.import_module(f"onnxfuse.cli.commands.{name.replace('-', '_')}")
    assert callable(module.command)
    flags = [flag for p in SchemaCommand(name).params for flag in (*p.opts, *p.secondary_opts) if flag[0] == "-"]
    assert len(flags) == len(set(flags))
    assert set(COMMANDS) == set(GROUPS)
