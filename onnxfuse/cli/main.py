"""The entry point: collects the commands, and turns every expected error into one message and its exit code."""

import difflib
import importlib
import signal
import sys
import threading
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem
from rich.console import Console

import onnxfuse
from onnxfuse.cli.console import VERBOSITY, print_json
from onnxfuse.model import isolation
from onnxfuse.model.errors import OnnxfuseError

COMMANDS = {
    "optimize": "Apply the fusion rules to a model and write the result.",
    "verify": "Run two models on the same inputs and compare what they compute.",
    "bench": "Time a model before and after fusion, against ONNX Runtime's best settings.",
    "profile": "Tell where the bytes and the time of a model go, before and after fusion.",
    "rules": "List the rules, or explain one.",
    "explain": "Say what fuses in a model, what does not, and why.",
    "ci": "Hold models to what onnxfuse.toml and onnxfuse.lock promise.",
    "doctor": "Say what is installed, what is missing, and how to mend it.",
    "completion": "Print the completion script for a shell.",
}
"""Each command is a module of this package with a click command called `command`, imported when it is used."""

EXIT_CODES = """\
Exit codes: 0 ok, 1 numerical mismatch, 2 usage, 3 unreadable or invalid model,
4 expectation not met (--require, --min-speedup), 5 environment (no CUDA where it was asked for)."""


UNREADABLE = 3


class _Commands(click.Group):
    """Imports a command's module only when that command is used: `--help` needs neither ONNX nor CUDA."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"onnxfuse.cli.{name}").command
        taken = {option for parameter in command.params for option in parameter.opts}
        command.params += [option for option in manners() if not taken & set(option.opts)]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant; one that there is not is told with the nearest that there is."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"No such command '{args[0]}'.{f' Did you mean {near[0]}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing any of them."""
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return names or super(click.Group, self).shell_complete(ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def manners() -> list[click.Option]:
    """Return the options that every command has."""

    def say(level: int) -> Callable[[click.Context, click.Parameter, bool], None]:
        def callback(context: click.Context, _: click.Parameter, given: bool) -> None:
            if given:
                context.meta[VERBOSITY] = level

        return callback

    quiet, verbose = "Print no results; the exit code is the verdict.", "Print each step and its time, on stderr."
    return [
        click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, callback=say(-1), help=quiet),
        click.Option(["-v", "--verbose"], is_flag=True, expose_value=False, callback=say(1), help=verbose),
    ]


@click.group(cls=_Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(onnxfuse.__version__, prog_name="onnxfuse")
def group() -> None:
    """Fuse ONNX models for NVIDIA GPUs: fewer kernels, the same numbers, proven."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    if arguments is None:
        # The process is this command's alone: what it runs of a model, it may run in children.
        isolation.allow()
        arguments = sys.argv[1:]
    if threading.current_thread() is threading.main_thread():
        # A pipeline that runs out of time ends the process by this signal: half-written files go, as after any error.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        code = group.main(arguments, prog_name="onnxfuse", standalone_mode=False)
    except OnnxfuseError as error:
        _complain(str(error), error.hint, error.exit_code, arguments)
        code = error.exit_code
    except click.ClickException as error:
        if "--json" in arguments:
            _complain(error.format_message(), "", 2, arguments)
        else:
            error.show()
        code = 2
    except click.Abort:
        code = 130
    except OSError as error:
        # What the system refuses where no command expects it, such as a name that is too long; without a file it is
        # no mistake of the caller's.
        if error.filename is None:
            raise
        _complain(f"{error.filename}: {error.strerror}", "Check the path.", UNREADABLE, arguments)
        code = UNREADABLE
    sys.exit(code or 0)


def _complain(message: str, hint: str, code: int, arguments: list[str]) -> None:
    """Print an error: on standard error for people, as JSON on standard output for scripts that asked for JSON."""
    if "--json" in arguments:
        command = next((a for a in arguments if a in COMMANDS), "")
        print_json(command, {"ok": False, "exit_code": code, "error": message, "hint": hint})
        return
    console = Console(stderr=True, highlight=False)
    console.print("error:", style="bold red", end=" ")
    console.print(message, markup=False, soft_wrap=True)
    if hint:
        console.print(hint, markup=False, soft_wrap=True)
