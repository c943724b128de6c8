"""Console output: results on standard output, progress and errors on standard error.

Colors only on a terminal, and none if NO_COLOR is set: rich handles both. `--quiet` and `-v` apply to one call.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, cast

import click
import rich.console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from onnxfuse.support.screen import Blocks, SafeConsole, show

SCHEMA = 1
"""Version of the `--json` output; incremented when a fact changes its name, location or meaning."""

VERBOSITY = "onnxfuse.verbosity"
"""Key of the verbosity in click's context: -1 quiet, 0 default, 1 every step."""


class _IgnoringErrors:
    """A stream whose write errors are ignored: on a full disk, the work and its exit code are unaffected."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_stdin: ContextVar[Path | None] = ContextVar("stdin", default=None)
"""Temporary file with the model read from standard input."""


def register_stdin(file: Path) -> None:
    """Register the temporary file of standard input, for `with_callers_names`."""
    _stdin.set(file)


def with_callers_names(text: str) -> str:
    """Return a message with the model's name as the caller gave it: - if it came from a stream."""
    file = _stdin.get()
    return text if file is None else text.replace(f"{file}", "-").replace(f"{file.parent}{os.sep}", "")


def output() -> rich.console.Console:
    """Return the console for results; silent with --quiet."""
    return SafeConsole.of(sys.stdout, quiet=verbosity() < 0)


def print_result(command: str, facts: Mapping[str, Any], blocks: Blocks, *, as_json: bool) -> None:
    """Print what a command found: as JSON, or its screen."""
    if as_json:
        print_json(command, facts)
    else:
        show(blocks, output())


@contextmanager
def printing() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Yield a function that prints results while the command's output files are not yet in place.

    If standard output cannot be written, as on a full disk, the block fails, and with it everything that depends on its
    success. A closed pipe ends the command after the block.
    """
    closed_pipes: list[BrokenPipeError] = []

    def tell(show: Callable[[], None]) -> None:
        try:
            show()
            sys.stdout.flush()
        except BrokenPipeError as error:
            closed_pipes.append(error)

    yield tell
    for error in closed_pipes:
        raise error


def errors(*, quiet: bool = False) -> rich.console.Console:
    """Return the console for progress and errors, on standard error."""
    return SafeConsole(file=cast(IO[str], _IgnoringErrors(sys.stderr)), quiet=quiet)


def verbosity() -> int:
    """Return -1 for --quiet, 1 for -v, else 0."""
    context = click.get_current_context(silent=True)
    return 0 if context is None else int(context.meta.get(VERBOSITY, 0))


def print_json(command: str, facts: Mapping[str, Any]) -> None:
    """Print the facts of a command as JSON, with the schema version (onnxfuse/reporting/schema.json)."""
    click.echo(json.dumps({**facts, "schema": SCHEMA, "command": command}, indent=2).replace("\x7f", "\\u007f"))


@contextmanager
def working(first: str) -> Iterator[Callable[[str], None]]:
    """Show the current step while the block runs; yields a function that names the next step.

    One line on a terminal, drawn at each step: a thread that animates it would hold locks while this process is forked.
    With -v one line per step with its time, on standard error; nothing with --quiet.
    """
    console = errors(quiet=verbosity() < 0)
    if verbosity() <= 0:
        with Live(Text(f"{first} ..."), console=console, transient=True, auto_refresh=False) as line:
            yield lambda step: line.update(Text(f"{step} ..."), refresh=True)
        return
    step, start = first, time.perf_counter()

    def next_step(name: str) -> None:
        nonlocal step, start
        console.print(f"{step}: {time.perf_counter() - start:.2f} s", style="dim", markup=False)
        step, start = name, time.perf_counter()

    yield next_step
    next_step("")


@contextmanager
def bar(first: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on a terminal; yields a function of the step, the amount done, and the total.

    Redrawn at each step only, so that no thread runs while something is timed, or while this process is forked. With
    -v one line per step with its time, as in `working`.
    """
    if verbosity() > 0:
        with working(first) as next_step:
            steps = [first]

            def tell(step: str, amount: int, total: int) -> None:
                if step != steps[-1]:
                    steps.append(step)
                    next_step(step)

            yield tell
        return
    from rich.progress import Progress  # used by two commands only

    console = errors()
    disable = verbosity() < 0 or not console.is_terminal
    with Progress(console=console, transient=True, auto_refresh=False, disable=disable) as progress:
        task = progress.add_task(escape(first), total=None)
        progress.refresh()
        yield lambda step, done, total: progress.update(
            task, description=escape(step), completed=done, total=total, refresh=True
        )
