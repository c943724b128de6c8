"""The reference of the commands, made of what they say of themselves: `onnxfuse COMMAND --help`."""

import re
from functools import cache

import click

from onnxfuse.cli.main import EXIT_CODES, group
from onnxfuse.options import COMMANDS


def names() -> list[str]:
    """Return the commands, as `onnxfuse --help` lists them."""
    return list(COMMANDS)


@cache
def _context() -> click.Context:
    return click.Context(group, info_name="onnxfuse")


def page(name: str) -> str:
    """Return the page of a command."""
    context = _context()
    command = group.get_command(context, name)
    assert command is not None
    inner = click.Context(command, info_name=name, parent=context)
    usage = inner.get_usage().removeprefix("Usage: ")
    described, about = options(command, inner)
    parts = [f"# onnxfuse {name}", COMMANDS[name], f"```\n{usage}\n```", *about]
    parts += [f"[What it is for, and what it promises](../commands.md#onnxfuse-{name})."]
    rows = "\n".join(f"| {_options(left)} | {_cell(right)} |" for left, right in described)
    parts += ["## Options", f"| option | |\n|---|---|\n{rows}", "## Exit codes", EXIT_CODES.partition(": ")[2]]
    return "\n\n".join(parts) + "\n"


def options(command: click.Command, context: click.Context) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options of a command with what they do, and the paragraphs of its help."""
    records = [p.get_help_record(context) for p in command.get_params(context)]
    paragraphs = [" ".join(block.split()) for block in (command.help or "").replace("\b", "").split("\n\n")]
    return [r for r in records if r is not None and r[0].startswith("-")], [_cell(p) for p in paragraphs]


def _options(text: str) -> str:
    return ", ".join(f"`{one}`" for one in re.split(r", (?=-)", text))


def _cell(text: str) -> str:
    """Return words of a help text as Markdown: options and what is in backticks as code, the rest escaped."""
    return "".join(f"`{part}`" if n % 2 else _escaped(part) for n, part in enumerate(text.split("`")))


def _escaped(text: str) -> str:
    text = re.sub(r"([\\*_\[\]|])", r"\\\1", text).replace("<", "&lt;")
    return re.sub(r"(?<![\w-])(--?[a-z][\w-]*)", lambda m: f"`{m[1]}`", text)
