"""Results that print themselves: as lines and tables on a console, as text, and as HTML in a notebook.

A result yields its screen as blocks, `Line` and `Rows`; whoever shows it decides how. Names come from untrusted files:
`escape` them where they stand in a line or a cell, whose text is rich's markup.
"""

import io
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape as escape_html
from typing import IO, Any, Self, cast

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Column, Table
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
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

GAP = 2
"""Columns between two table columns, as in rich."""

INDENT = 4
"""Indentation of text below a row."""

LIMIT = 12
"""Rows of each table of a result, so that it fits one screen."""

BAR = 160
"""Width of the longest bar, in a notebook's pixels."""

_TRAILING_SPACES = re.compile(r"(?:\x1b\[[\d;]*m| )+\n")
"""Trailing spaces of a line, with their color codes."""


@dataclass(frozen=True)
class Line:
    """A line of markup; rich's style for all of it."""

    text: str = ""
    style: str = ""
    fold: bool = False
    """Whether a long line is folded at its words; one with names to copy is not."""
    hint: str = ""
    """What to do next on the command line, at the line's end; from Python it is left out."""

    def read_by(self, *, command_line: bool) -> str | None:
        """Return the text for a reader on the command line, or in Python; None if there is none for them."""
        return self.text + self.hint if command_line else None if self.hint and not self.text else self.text


def advice(text: str, *, fold: bool = False) -> Line:
    """Return a line with the next step on the command line."""
    return Line("", "dim", fold=fold, hint=text)


@dataclass(frozen=True)
class Rows:
    """A table whose columns may move below their rows, where they do not fit."""

    table: Table
    beneath: Sequence[str] = ()
    """Headings of the columns that may move there, in that order, as few as necessary."""
    names: bool = False
    """Whether cells are names to copy, each then on an unbroken line; only on a terminal, elsewhere each row is one
    line, for programs."""
    bars: Sequence[float] = field(default=())
    """A number for each row, drawn as a bar in a notebook; empty if there is nothing to compare."""


Block = Line | Rows
Blocks = Iterable[Block]


class Screen:
    """A result that prints as its screen; `repr` is the same, and a notebook shows it as HTML."""

    def screen(self) -> Blocks:
        """Return its lines and tables, the verdict first."""
        raise NotImplementedError

    def __str__(self) -> str:
        stream = io.StringIO()
        show(self.screen(), SafeConsole.of(stream, force_terminal=False), command_line=False)
        return stream.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(map(_html, self.screen()))


def show(blocks: Blocks, console: rich.console.Console, *, command_line: bool = True) -> None:
    """Print blocks, for a reader on the command line or in Python."""
    for block in blocks:
        if isinstance(block, Rows):
            _show_table(console, block)
        elif (text := block.read_by(command_line=command_line)) is not None:
            console.print(text, style=block.style or None, soft_wrap=not block.fold)


class _Table(Table):
    """A table whose cells are as wide as what is printed of them."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def plain_table(*headings: str, right: Collection[str] = (), whole: Collection[str] = ()) -> Table:
    """Return a table without borders; the columns of the headings in `right` are right-aligned, no line of those in
    `whole` is folded."""
    table = _Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=heading in whole)
    return table


def counted_rows(
    title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]], limit: int | None = LIMIT
) -> Iterator[Block]:
    """Yield a table of a count, a rule and more, up to `limit` rows; nothing without rows."""
    if not rows:
        return
    yield Line()
    table = plain_table(title, "rule", *headings, right=(title,))
    table.columns[-1].min_width = PROSE
    for row in rows[:limit]:
        table.add_row(*(escape(cell) for cell in row))
    yield Rows(table, headings[-2:], names=True)
    yield from more_rows(rows, limit)


def more_rows(
    rows: Sequence[object], limit: int | None, noun: str = "more row", shown_by: str = "--all"
) -> Iterator[Block]:
    """Yield a line for the rows beyond a limit, and how to see them: by an option, or by another command."""
    if limit is not None and len(rows) > limit:
        yield Line(f"... and {plural(len(rows) - limit, noun)}", "dim", fold=True, hint=f": {escape(shown_by)}")


class SafeConsole(rich.console.Console):
    """Console that prints names verbatim and never interprets markup in them, because they come from untrusted
    files."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)  # `:x:` in a name is not an emoji

    @classmethod
    def of(cls, stream: IO[str], **options: Any) -> Self:
        """Return a console for results on a stream; one that is no terminal has `WIDTH` columns or more."""
        detected = rich.console.Console(file=stream, **options)
        width = detected.width if detected.is_terminal else max(WIDTH, detected.width)
        return cls(file=cast(IO[str], _Stripping(stream)), width=width, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **{"crop": False, **options})

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError, which rich makes an exit of."""
        raise  # called where it is handled

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


class _Stripping:
    """A stream that strips the trailing spaces with which tables fill their lines."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(_TRAILING_SPACES.sub(lambda end: end[0].replace(" ", ""), text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


# ---- tables


def _show_table(console: rich.console.Console, rows: Rows) -> None:
    """Print a table; columns that do not fit are printed below their row, with their headings."""
    table, names = rows.table, rows.names
    columns, below = list(table.columns), list[Column]()
    order = [column for heading in rows.beneath for column in columns if column.header == heading]
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


# ---- HTML


def _html(block: Block) -> str:
    """Return a block as HTML."""
    if isinstance(block, Line):
        text = block.read_by(command_line=False)
        return f"<p>{_html_text(text, block.style)}</p>" if text else ""
    table, bars = block.table, _bars(block.bars)
    head = "".join(f"<th>{_html_text(str(column.header))}</th>" for column in table.columns) + "<th></th>" * bool(bars)
    cells = zip(*(column.cells for column in table.columns), strict=True)
    rows = [f"<tr>{''.join(f'<td>{_html_text(str(cell))}</td>' for cell in row)}" for row in cells]
    body = "".join(f"{row}{bar}</tr>" for row, bar in zip(rows, bars or [""] * len(rows), strict=True))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_text(markup: str, style: str = "") -> str:
    """Return markup as HTML: bold, faint and colored spans."""
    parts = []
    for text, look, _ in Text.from_markup(markup, style=style, emoji=False).render(rich.console.Console(), end=""):
        part = escape_html(printable(text)).replace("\n", "<br>")
        if look is not None and look.color is not None:
            part = f'<span style="color:{look.color.get_truecolor(DEFAULT_TERMINAL_THEME).hex}">{part}</span>'
        if look is not None and look.dim:
            part = f"<small>{part}</small>"
        parts.append(f"<b>{part}</b>" if look is not None and look.bold else part)
    return "".join(parts)


def _bars(values: Sequence[float]) -> list[str]:
    """Return a cell with a bar for each number, scaled to the largest finite one."""
    largest = max((v for v in values if math.isfinite(v)), default=0) or 1
    return [
        f'<td><div style="width:{BAR * (min(v / largest, 1) if v == v else 0):.0f}px;height:0.8em;'
        'background:#3b6fb6;border-radius:2px"></div></td>'
        for v in values
    ]
