"""Reports as text tables and notebook HTML: a verdict in one line, and a table below it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from onnxfuse.support.plurals import plural
from onnxfuse.support.printable import printable

WIDTH = 160
"""Width of the longest bar, in a notebook's pixels."""

ROWS = 20
"""Maximum rows of a table; the rest is counted."""


@dataclass(frozen=True)
class Table:
    """A report on one screen."""

    verdict: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    bars: Sequence[float] = ()
    """A number for each row, drawn as a bar in a notebook; empty if there is nothing to compare."""


class Tabled:
    """A report that prints as its table; `repr` is the same, and a notebook shows it as HTML."""

    def table(self) -> Table:
        """Return the table."""
        raise NotImplementedError

    def __str__(self) -> str:
        table = self.table()
        cells = [table.headings, *table.rows[:ROWS]] if table.rows else []
        widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        return printable("\n".join([table.verdict, *lines, *_more(table)]))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        report = self.table()
        head = "".join(f"<th>{escape(cell)}</th>" for cell in report.headings) + ("<th></th>" if report.bars else "")
        bars = _bars(report.bars[:ROWS]) or [""] * len(report.rows)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(printable(cell))}</td>' for cell in row)}{bar}</tr>"
            for row, bar in zip(report.rows[:ROWS], bars, strict=False)
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
        remainder = "".join(f"<p>{line}</p>" for line in _more(report))
        return f"<p><b>{escape(printable(report.verdict))}</b></p>{table}{remainder}"


def _bars(values: Sequence[float]) -> list[str]:
    """Return a cell with a bar for each number, scaled to the largest finite one."""
    largest = max((v for v in values if math.isfinite(v)), default=0) or 1
    return [
        f'<td><div style="width:{WIDTH * (min(v / largest, 1) if v == v else 0):.0f}px;height:0.8em;'
        'background:#3b6fb6;border-radius:2px"></div></td>'
        for v in values
    ]


def _more(table: Table) -> list[str]:
    return [plural(len(table.rows) - ROWS, "more row")] if len(table.rows) > ROWS else []
