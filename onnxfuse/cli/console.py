"""Where the commands print: results on standard output, what is going on on standard error.

Colours only on a terminal, and none where NO_COLOR is set: rich sees to both. `--quiet` and `-v` hold for one call.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console

WIDTH = 118
"""Columns. Tables are never narrower: in a CI log or a small window a wrapped line is better than a cut number."""

SCHEMA = 1
"""Version of what `--json` prints; it grows when a fact changes its name, its place or its meaning."""

VERBOSITY = "onnxfuse.verbosity"
"""Key of the call's verbosity in click's context: -1 quiet, 0 as usual, 1 every step."""


def output() -> Console:
    """Return the console for results; with --quiet it swallows them."""
    return Console(highlight=False, width=max(WIDTH, Console().width), quiet=verbosity() < 0)


def verbosity() -> int:
    """Return -1 for --quiet, 1 for -v, else 0."""
    context = click.get_current_context(silent=True)
    return 0 if context is None else int(context.meta.get(VERBOSITY, 0))


def print_json(command: str, facts: Mapping[str, Any]) -> None:
    """Print the facts of a command as JSON, under the version of their form (onnxfuse/reporting/schema.json)."""
    click.echo(json.dumps({**facts, "schema": SCHEMA, "command": command}, indent=2))


@contextmanager
def working(first: str) -> Iterator[Callable[[str], None]]:
    """Show the step at hand while the block runs; yields the function that names the next step.

    A spinner on a terminal; with -v one line per step with its time, on standard error; nothing with --quiet.
    """
    console = Console(stderr=True, highlight=False, quiet=verbosity() < 0)
    if verbosity() <= 0:
        with console.status(f"{first} ...") as status:
            yield lambda step: status.update(f"{step} ...")
        return
    step, start = first, time.perf_counter()

    def next_step(name: str) -> None:
        nonlocal step, start
        console.print(f"{step}: {time.perf_counter() - start:.2f} s", style="dim", markup=False)
        step, start = name, time.perf_counter()

    yield next_step
    next_step("")
