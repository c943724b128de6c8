"""`onnxfuse config`: every option with its value and the origin of the value."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import click
from click.core import ParameterSource
from rich.markup import escape

from onnxfuse.cli.base.command import SchemaCommand
from onnxfuse.cli.base.console import print_result
from onnxfuse.options import COMMANDS, toml
from onnxfuse.options.commands import GROUPS, ConfigCommand
from onnxfuse.options.schema import Field, fields
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import UsageError
from onnxfuse.support.screen import Rows, plain_table

DEFAULT = "default"


def command(**given: Unpack[ConfigCommand]) -> int:
    """Run the command and print its result."""
    call = given["call"]
    if given["schema"]:
        click.echo(json.dumps(toml.json_schema(), indent=2))
        return 0
    rows = _of_call(str(call[0]), [str(word) for word in call[1:]]) if call else _of_all()
    table = plain_table(*rows[0])
    for row in rows:
        table.add_row(*(escape(_text(value)) for value in row.values()))
    screen = [Rows(table, ("applies to", "onnxfuse.toml"))]
    print_result("config", {"ok": True, "options": rows}, screen, as_json=given["as_json"])
    return 0


def _of_all() -> list[dict[str, Any]]:
    """Return the options of all commands, with the commands to which each applies."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for command, group in GROUPS.items():
        for one in _shown(group):
            default = _text(_plain(one.option.default))
            new = {**_named(one), "value": default, "origin": DEFAULT, "applies to": []}
            row = rows.setdefault((one.name, one.option.flag, default), new)
            row["onnxfuse.toml"] = row["onnxfuse.toml"] or new["onnxfuse.toml"]
            row["applies to"].append(command)
    for row in rows.values():
        commands = row["applies to"]
        row["applies to"] = ", ".join(commands) if len(commands) < len(GROUPS) - 1 else "all commands"
    return list(rows.values())


def _of_call(name: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Return the options with which a command would run, and for `ci` those of each model of its file."""
    if name not in COMMANDS:
        raise UsageError(
            f"'{name}' is not a command.{did_you_mean(name, set(COMMANDS))}", "onnxfuse --help lists them."
        )
    command = SchemaCommand(name)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):  # the models need not be there
            parameter.required, parameter.type = False, click.STRING
    context = command.make_context(name, list(arguments))
    rows = [
        {
            **_named(one),
            "value": _plain(context.params[one.name]),
            "origin": DEFAULT if context.get_parameter_source(one.name) is ParameterSource.DEFAULT else "flag",
        }
        for one in _shown(GROUPS[name])
    ]
    return rows + _of_models(context.params) if name == "ci" else rows


def _of_models(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the options of `optimize` for each model of a file."""
    from onnxfuse.api.run.ci import read_config  # ONNX is imported where it is needed

    config = read_config(None if given["config"] is None else Path(given["config"]), given["names"])
    return [
        {
            **_named(one),
            "option": f"{entry.name}: {name}",
            "value": _plain(entry.options.get(name, one.option.default)),
            "origin": config.place((*entry.where, name)) if entry.options.get(name) not in (None, ()) else DEFAULT,
        }
        for entry in config.models
        for name, one in toml.model_options().items()
    ]


def _shown(group: type) -> list[Field]:
    return [one for one in fields(group).values() if one.option.flag]


def _named(one: Field) -> dict[str, Any]:
    return {"option": one.name, "flag": ", ".join(one.flags), "onnxfuse.toml": one.name if one.option.toml else ""}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _text(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None or value == [] or value == {}:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
