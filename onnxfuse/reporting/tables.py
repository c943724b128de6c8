"""HTML tables, and number formatting in them."""

from collections.abc import Sequence
from html import escape

from onnxfuse.support.plurals import plural

ROWS = 300
"""Maximum rows of a table; the others are counted."""


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], attribute: str = "", key: int = 0) -> str:
    """Return the rows as a table, empty without rows; `attribute` is set to the cell `key` of each row."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    lines = []
    for row in rows[:ROWS]:
        mark = f' {attribute}="{escape(str(row[key]))}"' if attribute else ""
        lines.append(f"<tr{mark}>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>")
    remainder = f"<p>... and {plural(len(rows) - ROWS, 'more row')}: --json has all</p>" if len(rows) > ROWS else ""
    body = f"<tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{body}</table></div>{remainder}'


def number(value: float | str, digits: int = 3) -> str:
    """Format so many significant digits; non-finite numbers are text already."""
    return value if isinstance(value, str) else f"{value:.{digits}g}"
