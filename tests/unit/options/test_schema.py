"""Declarations of options: each names options that exist, and is all that a new option takes."""

import inspect
import re
from typing import Annotated, Unpack

import click
import pytest

import onnxfuse
from onnxfuse._public import public
from onnxfuse.cli.base.parameters import parameters
from onnxfuse.options import functions, groups, schema
from onnxfuse.options.commands import GROUPS
from onnxfuse.options.kinds import OptionalFactor
from onnxfuse.options.schema import Option

FUNCTIONS = [g for g in vars(functions).values() if isinstance(g, type) and hasattr(g, "__total__")]

ALL = [*GROUPS.values(), *FUNCTIONS]


@pytest.mark.parametrize("group", ALL, ids=lambda g: g.__name__)
def test_a_declaration_names_options_that_exist(group: type) -> None:
    """A misspelt name in `needs` would never be missed; help names others as its reader spells them."""
    options = schema.fields(group)
    everywhere = {name for one in ALL for name in schema.fields(one)}
    for name, one in options.items():
        assert {*one.option.needs, *one.option.excludes} <= everywhere, name
        for python in (True, False):
            text = schema.help_text(one, group, python=python)
            assert not re.search(r"\{\w+\}", text)
            assert text.endswith(".") or not (python or one.option.flag)
            # A flag that turns something off says what it does, and not what is done without it.
            assert not text.startswith("Without it"), name
        assert set(re.findall(r"\{(\w+)\}", one.option.help)) <= everywhere


class Extended(groups.Optimizing, total=False):
    """The options of `optimize`, and a new one: the recipe of docs/dev/ADDING.md, carried out."""

    margin: Annotated[OptionalFactor, Option(None, "Margin of {guard}.", "--margin", "X", needs=("guard",), toml=True)]


def test_a_new_option_is_its_declaration() -> None:
    """The keyword with its check and its line of the docstring, the flag with its help, the key of onnxfuse.toml."""

    @public(Extended)
    def make(model: str, **given: Unpack[Extended]) -> float | None:
        """Return the margin."""
        return given["margin"]

    assert make("m.onnx", margin=2, guard=True) == 2.0
    assert inspect.signature(make).parameters["margin"].default is None
    assert "- `margin`: Margin of `guard`." in str(make.__doc__)
    with pytest.raises(onnxfuse.UsageError, match=r"^margin is -1 \(int\); expected a number of at least 0"):
        make("m.onnx", margin=-1)
    with pytest.raises(onnxfuse.UsageError, match=r"^margin goes with guard"):
        make("m.onnx", margin=2)
    (flag,) = (p for p in parameters(Extended) if p.name == "margin")
    with click.Context(click.Command("make")) as context:
        assert flag.get_help_record(context) == ("--margin X", "Margin of --guard.  [x>=0]")
    assert "margin" in schema.toml_keys(Extended)
