"""Console output: results on standard output, progress and errors on standard error.

Colors only on a terminal, and none if NO_COLOR is set: rich handles both. `--quiet` and `-v` apply to one call.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, cast

import click
import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Column, Table
from rich.text import Text

from onnxfuse.support.plurals import plural
from onnxfuse.support.printable import printable

WIDTH = 118
"""Width without a terminal: in a file, a pipe, or a pipeline's log; COLUMNS overrides it."""

FOLDED = 16
"""Minimum width of a foldable column: a table that does not fit exceeds its terminal, without truncation."""

PROSE = 24
"""Minimum width of a reason next to a name."""

WIDE = 1 << 16
"""Width at which nothing is folded."""

SCHEMA = 1
"""Version of the `--json` output; incremented when a fact changes its name, location or meaning."""

GAP = 2
"""Columns between two table columns, as in rich."""

INDENT = 4
"""Indentation of text below a row."""

_TRAILING_SPACES = re.compile(r"(?:\x1b\[[\d;]*m| )+\n")
"""Trailing spaces of a line, with their color codes."""

VERBOSITY = "onnxfuse.verbosity"
"""Key of the verbosity in click's context: -1 quiet, 0 default, 1 every step."""


class _Printing(rich.console.Console):
    """Console that prints names verbatim and never interprets markup in them, because they come from untrusted
    files."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)  # `:x:` in a name is not an emoji

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **{"crop": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        if isinstance(renderable, Table) and all(isinstance(cell, str) for c in renderable.columns for cell in c.cells):
            options = options or self.options
            widths = _widths(renderable.columns, self, options.max_width)
            for column, width in zip(renderable.columns, widths, strict=True):
                column.width, column.overflow = width, "fold"  # a truncated name could not be copied into a query
            options = options.update_width(max(options.max_width, _total_width(widths)))
        for segment in super().render(renderable, options):
            text = segment.text
            escaped = text if segment.control or text.isspace() or not text else printable(text)
            yield segment if escaped == text else Segment(escaped, segment.style)


def _widths(columns: Sequence[Column], console: rich.console.Console, width: int) -> list[int]:
    """Return the column widths for a table of at most `width` columns if possible: the widest columns are folded.

    Numbers are never broken; words, including names, only if there is not enough room; otherwise no column is narrower
    than `FOLDED`.
    """
    widest_each, narrowest_each = (
        [_widest(column, console) for column in columns],
        [_narrowest(column, console) for column in columns],
    )
    if _total_width(narrowest_each) > width:
        narrowest_each = [
            m if _rigid(column) else min(m, max(FOLDED, column.min_width or 0))
            for column, m in zip(columns, widest_each, strict=True)
        ]
    while _total_width(widest_each) > width and widest_each != narrowest_each:
        widest = max(
            (n for n in range(len(widest_each)) if widest_each[n] > narrowest_each[n]), key=widest_each.__getitem__
        )
        widest_each[widest] -= 1
    return widest_each


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _rigid(column: Column) -> bool:
    return column.no_wrap or column.justify == "right" or column.width is not None


def _narrowest(column: Column, console: rich.console.Console) -> int:
    """Return the width at which no word of a column is broken."""
    widest = _widest(column, console)
    return widest if _rigid(column) else min(widest, max(FOLDED, column.min_width or 0, *_measured(column, console, 0)))


def _widest(column: Column, console: rich.console.Console) -> int:
    """Return the width at which no cell of a column is folded."""
    return column.width or min(max(_measured(column, console, 1)), column.max_width or WIDE)


def _measured(column: Column, console: rich.console.Console, which: int) -> list[int]:
    """Return the width of each cell of a column: its longest word, 0, or its longest line, 1."""
    wide = console.options.update_width(WIDE)
    return [Measurement.get(console, wide, cell)[which] for cell in (column.header, *column.cells)]


class _Stripping:
    """A stream that strips the trailing spaces with which tables fill their lines."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(_TRAILING_SPACES.sub(lambda end: end[0].replace(" ", ""), text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


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
    detected = rich.console.Console()
    width = detected.width if detected.is_terminal else max(WIDTH, detected.width)
    return _Printing(file=cast(IO[str], _Stripping(sys.stdout)), width=width, quiet=verbosity() < 0)


@contextmanager
def printing() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Yield a function that prints results while the command's output files are not yet in place.

    If standard output cannot be written, as on a full disk, the block fails, and with it everything that depends on its
    success. A closed pipe ends the command after the block.
    """
    closed_pipes: list[BaseException] = []

    def tell(show: Callable[[], None]) -> None:
        try:
            show()
            sys.stdout.flush()
        except (BrokenPipeError, SystemExit) as error:
            if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
                raise
            closed_pipes.append(error)

    yield tell
    for error in closed_pipes:
        raise error


def errors(*, quiet: bool = False) -> rich.console.Console:
    """Return the console for progress and errors, on standard error."""
    return _Printing(file=cast(IO[str], _IgnoringErrors(sys.stderr)), quiet=quiet)


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

    A spinner on a terminal; with -v one line per step with its time, on standard error; nothing with --quiet.
    """
    console = errors(quiet=verbosity() < 0)
    if verbosity() <= 0:
        with console.status(Text(f"{first} ...")) as status:
            yield lambda step: status.update(Text(f"{step} ..."))
        return
    step, start = first, time.perf_counter()

    def next_step(name: str) -> None:
        nonlocal step, start
        console.print(f"{step}: {time.perf_counter() - start:.2f} s", style="dim", markup=False)
        step, start = name, time.perf_counter()

    yield next_step
    next_step("")


@contextmanager
def bar(first: str, *, still: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on a terminal; yields a function of the step, the amount done, and the total.

    `still`: redrawn at each step only, so that nothing runs while something is timed. With -v one line per step with
    its time, as in `working`.
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
    with Progress(console=console, transient=True, auto_refresh=not still, disable=disable) as progress:
        task = progress.add_task(escape(first), total=None)
        if still:
            progress.refresh()
        yield lambda step, done, total: progress.update(
            task, description=escape(step), completed=done, total=total, refresh=still
        )


def plain_table(*headings: str, right: Collection[str] = ()) -> Table:
    """Return a table without borders; the columns of the headings in `right` are right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    return table


def print_table(console: rich.console.Console, table: Table, beneath: Sequence[str], *, names: bool = False) -> None:
    """Print a table; columns that do not fit are printed below their row, with their headings.

    `beneath`: headings of the columns that may be moved there, in that order, as few as necessary. `names`: whether
    cells are names to copy, each then on an unbroken line; only on a terminal, elsewhere each row is one line, for
    programs.
    """
    columns, below = list(table.columns), list[Column]()
    order = [column for heading in beneath for column in columns if column.header == heading]
    while (names or console.is_terminal) and order and _least_width(columns, console) > console.width:
        below.append(order.pop(0))
        columns.remove(below[-1])
    if not below:
        console.print(table)
        return
    widths = _widths(columns, console, console.width)

    def line(*cells: RenderableType, style: StyleType | None) -> Table:
        part = Table(box=None, pad_edge=False, show_header=False)
        for column, width in zip(columns, widths, strict=True):
            part.add_column(justify=column.justify, width=width)
        part.add_row(*cells, style=style)
        return part

    console.print(line(*(column.header for column in columns), style=table.header_style))
    for index, row in enumerate(table.rows):
        console.print(line(*(list(column.cells)[index] for column in columns), style=row.style))
        facts = [
            (str(column.header).partition(" ->")[0], str(list(column.cells)[index]))
            for column in table.columns
            if column in below
        ]
        labeled = [f"{heading} {cell}" for heading, cell in facts if cell]
        for fact in labeled if names else filter(None, [", ".join(labeled)]):
            text = Text.from_markup(fact.replace("\n", f"\n{' ' * INDENT}") if names else fact, style="dim")
            line_below = Text(" " * INDENT).append_text(text) if names else Padding(text, (0, 0, 0, INDENT))
            console.print(line_below, soft_wrap=names)


def _least_width(columns: Sequence[Column], console: rich.console.Console) -> int:
    return _total_width([_narrowest(column, console) for column in columns])


def print_rows(
    console: rich.console.Console,
    title: str,
    headings: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    limit: int | None,
) -> None:
    """Print a table of a count, a rule and more, up to `limit` rows; nothing without rows."""
    if not rows:
        return
    console.print()
    table = plain_table(title, "rule", *headings, right=(title,))
    table.columns[-1].min_width = PROSE
    for row in rows[:limit]:
        table.add_row(*(escape(cell) for cell in row))
    print_table(console, table, headings[-2:], names=True)
    if limit is not None and len(rows) > limit:
        console.print(f"... and {plural(len(rows) - limit, 'more row')}: --all", style="dim")
