"""Entry point: dispatches commands, and turns every expected error into one message and its exit code."""

import contextlib
import errno
import io
import itertools
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

import onnxfuse
from onnxfuse.cli.base.console import errors, print_json, with_callers_names
from onnxfuse.cli.base.interrupt import exit_on_signal
from onnxfuse.options import COMMAND_GROUPS, COMMANDS, EXAMPLES
from onnxfuse.support import isolation
from onnxfuse.support.errors import OnnxfuseError
from onnxfuse.support.printable import printable

EXIT_CODES = """\
Exit codes: 0 ok, 1 numerical mismatch, 2 usage, 3 unreadable or invalid model,
4 expectation not met (--require, --min-speedup), 5 environment (CUDA requested but not usable),
70 an internal error of onnxfuse."""


USAGE = 2
UNREADABLE = 3
ENVIRONMENT = 5
FAULT = 70
"""EX_SOFTWARE of sysexits.h, an internal software error; distinct from our other exit codes, and from a shell's."""

PIPE_CLOSED = 128 + 13
"""As a shell reports SIGPIPE, which Windows does not have."""

EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""Errors for exhausted system resources."""

WORDS = 300
"""Maximum length of an exception's message that is printed: some quote a whole model."""

PACKAGE = Path(onnxfuse.__file__).parent


@contextlib.contextmanager
def _pipes_closing() -> Iterator[None]:
    """Where whoever read the output has gone, exit as a shell reports it; click would say 1, a verdict here."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(PIPE_CLOSED) from None


class _Commands(click.Group):
    """The commands; help and completion need neither ONNX nor CUDA."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        from onnxfuse.cli.base.command import SchemaCommand  # not for the list of commands

        return SchemaCommand(name)

    def make_context(self, *given: Any, **options: Any) -> click.Context:
        """Parse the arguments, or print help."""
        with _pipes_closing():
            return super().make_context(*given, **options)

    def invoke(self, ctx: click.Context) -> object:
        """Run the requested command."""
        with _pipes_closing():
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing any of them."""
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return names or super(click.Group, self).shell_complete(ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_max=max(map(len, COMMANDS)))

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what it is for, and examples, before the options."""
        super().format_help_text(ctx, formatter)
        with formatter.section("Examples"):
            for line, what in EXAMPLES.items():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
                formatter.write(f"{'':{formatter.current_indent}}    {what}\n")


@click.group(
    cls=_Commands,
    commands=dict.fromkeys(COMMANDS),
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(onnxfuse.__version__, prog_name="onnxfuse")
def group() -> None:
    """Fuse ONNX models for NVIDIA GPUs: fewer kernels, the same results, verified."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    ours = arguments is None
    if arguments is None:
        # This process runs nothing but this command, which may run models in child processes.
        isolation.allow()
        # Disable ONNX Runtime's telemetry, which also prints errors if HOME is not writable.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        _open_streams()
        arguments = sys.argv[1:]
    if threading.current_thread() is threading.main_thread():
        # A pipeline's time limit ends the process by SIGTERM: remove half-written files, as after any error.
        signal.signal(signal.SIGTERM, _on_signal)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as shells do for background jobs
            signal.signal(signal.SIGINT, _on_signal)
        _Signal.by = 0
    code = _run(arguments)
    if ours:
        _flush_streams()
        if signal.getsignal(signal.SIGINT) is _on_signal:
            signal.signal(signal.SIGINT, exit_on_signal)  # libraries take themselves down; all is said
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code; an error is printed."""
    try:
        return group.main(arguments, prog_name="onnxfuse", standalone_mode=False) or 0
    except OnnxfuseError as error:
        _print_error(f"{error}", error.hint, error.exit_code, arguments)
        return error.exit_code
    except click.ClickException as error:
        _usage_error(error, arguments)
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    except OSError as error:
        return _system_error(error, arguments)
    except MemoryError:
        _print_error(
            "this machine is out of memory",
            "Close other programs, or use a machine with more memory.",
            ENVIRONMENT,
            arguments,
        )
        return ENVIRONMENT
    except Exception as error:
        if _Signal.by:  # what is compiled, such as NumPy while it is imported, makes an error of its own of a signal
            return 128 + _Signal.by
        _internal_error(error, arguments)
        return FAULT


def _usage_error(error: click.ClickException, arguments: list[str]) -> None:
    """Print what click reports of the arguments, and what takes the place of another tool's."""
    from onnxfuse.cli.base.foreign_flags import answered

    error, hint = answered(error)
    if "--json" in arguments:
        _print_error(error.format_message(), hint, USAGE, arguments)
        return
    with contextlib.redirect_stderr(io.StringIO()) as captured:
        error.show()
    with contextlib.suppress(OSError):  # as in _complain
        text = captured.getvalue().expandtabs(2)  # a tab would be printed as an escape
        click.echo(printable(f"{text}{hint}\n" if hint else text), err=True, nl=False)


def _system_error(error: OSError, arguments: list[str]) -> int:
    """Print what the system refuses where no command expects it, such as a name that is too long; return the exit code.

    Without a file it is no mistake of the caller's.
    """
    lacking = _exhausted_resource(error)
    if lacking:
        _print_error(lacking, "Free some, or raise the limit (ulimit -a).", ENVIRONMENT, arguments)
        return ENVIRONMENT
    if error.filename is None:
        _internal_error(error, arguments)
        return FAULT
    _print_error(f"{error.filename}: {error.strerror}", "Check the path.", UNREADABLE, arguments)
    return UNREADABLE


class _Signal:
    """The signal that ends this call; 0 if there is none."""

    by = 0


def _on_signal(signal_number: int, _: object) -> None:
    _Signal.by = signal_number
    if signal_number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + signal_number)


def _exhausted_resource(error: OSError) -> str:
    """Return the resource that this machine or process has exhausted; empty for other errors."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))  # if this fails, so does every file operation
    except OSError as nothing:
        error = nothing
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        if error.errno not in EXHAUSTED:
            return "no folder for temporary files can be written to: neither TMPDIR nor /tmp"
    prefix = "" if error.filename is None else f"{error.filename}: "
    return f"{prefix}{error.strerror}" if error.errno in EXHAUSTED else ""


def _open_streams() -> None:
    """Redirect closed standard streams to the null device: otherwise an opened file would get their descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))  # noqa: SIM115 - stays open


def _flush_streams() -> None:
    """Redirect streams that cannot be flushed to the null device: Python would fail at exit, with an exit code of its
    own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _internal_error(error: Exception, arguments: list[str]) -> None:
    """Report an unexpected exception, which is our defect, in one line; with --traceback in full."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = next((f for f in reversed(frames) if Path(f.filename).is_relative_to(PACKAGE)), frames[-1])
    location = f"{Path(ours.filename).name}:{ours.lineno}"
    words = " ".join(f"{error}".split())
    with_traceback = "--traceback" in arguments
    if with_traceback:
        from onnxfuse.cli.base.report_files import environment

        click.echo(printable("".join(traceback.format_exception(error))), err=True)
        click.echo("".join(f"{k} {v}\n" for k, v in environment().items()), err=True, nl=False)
    advice = "Send the output above" if with_traceback else "Run it again with --traceback, and send the output"
    _print_error(
        f"internal error of onnxfuse: {type(error).__name__}{f': {words[:WORDS]}' if words else ''} ({location})",
        f"{advice}, with the model if you may share it; onnxfuse docs security says where. No output was written.",
        FAULT,
        arguments,
    )


def _json_file(message: str, hint: str, arguments: list[str]) -> str:
    """Return the hint for a call that gives --json a file, which the command then misses as something else."""
    file = next((b for a, b in itertools.pairwise(arguments) if a == "--json" and not b.startswith("-")), None)
    if file is None or file not in message or "--json >" in hint:
        return hint
    rest = " ".join(a for a in arguments if a != file)
    return f"--json takes no file, it prints to standard output: onnxfuse {rest} > {file}"


def _print_error(message: str, hint: str, code: int, arguments: list[str]) -> None:
    """Print an error: on standard error for people, as JSON on standard output for scripts that requested JSON.

    If standard output cannot be written the error goes to standard error; if that fails too, only the exit code reports
    it.
    """
    message, hint = with_callers_names(message), with_callers_names(_json_file(message, hint, arguments))
    if "--json" in arguments:
        name = next((a for a in arguments if a in COMMANDS), "")
        with contextlib.suppress(OSError):
            print_json(name, {"ok": False, "exit_code": code, "error": message, "hint": hint})
            return
    console = errors()
    console.print("error:", style="bold red", end=" ")
    console.print(message, markup=False, soft_wrap=True)
    if hint:
        console.print(hint, markup=False, soft_wrap=True)
