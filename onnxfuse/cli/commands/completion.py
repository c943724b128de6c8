"""`onnxfuse completion`: print the shell completion script for commands, options and rule names."""

import click
from click.shell_completion import get_completion_class

SHELLS = {
    "bash": "onnxfuse completion bash >> ~/.bashrc",
    "zsh": "onnxfuse completion zsh >> ~/.zshrc",
    "fish": "onnxfuse completion fish > ~/.config/fish/completions/onnxfuse.fish",
}
"""Supported shells, each with the line that installs the script."""
NEEDS = "zsh loads it after compinit: a ~/.zshrc without that needs 'autoload -Uz compinit && compinit' before it."


@click.command("completion", epilog="\n\n".join(("Install it:", *SHELLS.values(), NEEDS)))
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def command(context: click.Context, shell: str) -> int:
    """Print the completion script for SHELL."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    root = context.find_root().command
    click.echo(kind(root, {}, "onnxfuse", "_ONNXFUSE_COMPLETE").source())
    return 0
