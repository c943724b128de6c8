"""`onnxfuse completion`: print the shell completion script for commands, options and rule names."""

from typing import Unpack

import click
from click.shell_completion import get_completion_class

from onnxfuse.options.commands import CompletionCommand


def command(**given: Unpack[CompletionCommand]) -> int:
    """Run the command and print its result."""
    context, shell = click.get_current_context(), given["shell"]
    kind = get_completion_class(shell)
    assert kind is not None, shell
    root = context.find_root().command
    click.echo(kind(root, {}, "onnxfuse", "_ONNXFUSE_COMPLETE").source())
    return 0
