"""Reports as short text and in notebooks: a verdict in one line, and a table below it."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from onnxfuse.model.printable import printable

ROWS = 20
"""Of a table; the rest is counted."""


@dataclass(frozen=True)
class Table:
    """What a report is on one screen."""

    verdict: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class Tabled:
    """A report that prints as its table; `repr` is the same, and a notebook shows it as HTML."""

    def table(self) -> Table:
        """Return what is shown."""
        raise NotImplementedError

    def __str__(self) -> str:
        shown = self.table()
        cells = [shown.headings, *shown.rows[:ROWS]] if shown.rows else []
        widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        return printable("\n".join([shown.verdict, *lines, *_more(shown)]))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        shown = self.table()
        head = "".join(f"<th>{escape(cell)}</th>" for cell in shown.headings)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(printable(cell))}</td>' for cell in row)}</tr>" for row in shown.rows[:ROWS]
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
        more = "".join(f"<p>{line}</p>" for line in _more(shown))
        return f"<p><b>{escape(printable(shown.verdict))}</b></p>{table}{more}"


def _more(shown: Table) -> list[str]:
    return [f"{len(shown.rows) - ROWS} more rows"] if len(shown.rows) > ROWS else []
