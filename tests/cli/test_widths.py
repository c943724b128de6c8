"""What is printed fits where it is read: a narrow terminal, a file, a log; nothing of a table is cut."""

import io
import re
from collections.abc import Iterator

import pytest
from rich.table import Table

from onnxfuse.cli import console

NAME = "encoder.layer.11.attention.output.LayerNorm/LayerNormalization"
REASON = "too little to fuse: no pointwise nodes around it, and the rule wants one of them at the least"


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def tables() -> Iterator[Table]:
    """Yield a table that can be folded to fit, and one that cannot."""
    folding = Table("node", "MB", "because", box=None, pad_edge=False, header_style="bold")
    folding.columns[1].justify = "right"
    folding.add_row(NAME, "1,234.5", REASON)
    folding.add_row("b", "0.1", "so")
    yield folding
    whole = Table("output", *(f"number {n}" for n in range(12)), box=None, pad_edge=False)
    for column in whole.columns[1:]:
        column.justify = "right"
    whole.add_row("a_long_name_of_an_output", *(f"{n}.{n}e-0{n % 10}" for n in range(12)))
    yield whole


def printed(stream: io.StringIO, table: Table, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines without colours; each ends where its text does."""
    monkeypatch.setattr("sys.stdout", stream)
    console.output().print(table)
    lines = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).splitlines()
    assert not any(line.endswith(" ") for line in lines)
    return lines


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_terminal_gets_tables_that_fit_and_numbers_that_are_whole(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be folded enough goes beyond the edge, where the terminal breaks it: no letter is lost."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    folding, whole = tables()
    lines = printed(Terminal(), folding, monkeypatch)
    assert max(map(len, lines)) <= columns
    text = "".join("".join(lines).split())
    assert "1,234.5" in text
    first = "".join(line[: lines[0].index("MB") - 6].strip() for line in lines[1:])
    assert NAME in first
    lines = printed(Terminal(), whole, monkeypatch)
    assert all(f"{n}.{n}e-0{n % 10}" in lines[1].split() for n in range(12))


def test_a_file_gets_lines_of_one_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of that width, whatever the terminal is that waits for it."""
    monkeypatch.delenv("COLUMNS", raising=False)
    folding, _ = tables()
    lines = printed(io.StringIO(), folding, monkeypatch)
    assert 100 < max(map(len, lines)) <= console.WIDTH
