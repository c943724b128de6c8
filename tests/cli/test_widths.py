"""What is printed fits where it is read: a narrow terminal, a file, a log; nothing of a table is cut."""

import io
import re
from collections.abc import Iterator

import pytest
from rich.table import Table

from onnxfuse.cli.base.console import output
from onnxfuse.support import screen

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
    screen.show([screen.Rows(table)], output())
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
    assert 100 < max(map(len, lines)) <= screen.WIDTH


NUMBERS = {"error": "8.2e-05", "allowed": "0.00026", "max abs": "3.1e-05", "cosine": "1.0000000"}


def measured() -> Table:
    """Return a table of outputs as `verify` has it, 90 columns wide."""
    table = Table("output", "type", *NUMBERS, "passes with", "verdict", box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.no_wrap = True
    table.add_row("y", "float32", *NUMBERS.values(), "rtol 1e-05 atol 0.0e+00", "[green]ok[/]")
    table.add_row("[bold]z[/]", "", *("" for _ in NUMBERS), "", "[yellow]undecided[/]")
    return table


@pytest.mark.parametrize(("columns", "beneath"), [(120, ()), (80, (-1,)), (50, (2, 3, -1))])
def test_numbers_go_beneath_their_rows_where_it_is_narrow(
    columns: int, beneath: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more of them than need be, with their names; what has nothing to tell has no second line."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    screen.show([screen.Rows(measured(), ("passes with", "cosine", "max abs"))], output())
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).splitlines()]
    facts = [*NUMBERS.items(), ("passes with", "rtol 1e-05 atol 0.0e+00")]
    told = [facts[n] for n in beneath]
    assert max(map(len, lines)) <= columns
    assert (
        lines[0].split() == " ".join(["output type", *(n for n, _ in facts if n not in dict(told)), "verdict"]).split()
    )
    assert lines[1].split() == " ".join(["y float32", *(x for n, x in facts if n not in dict(told)), "ok"]).split()
    assert lines[0].index("verdict") == lines[1].index("ok") == lines[-1].index("undecided")
    assert " ".join(lines[2:-1]).split() == " ".join(", ".join(f"{n} {x}" for n, x in told).split()).split()


def test_a_row_is_one_line_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its width: scripts read it."""
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    screen.show([screen.Rows(measured(), ("passes with",))], output())
    assert len(stream.getvalue().splitlines()) == 3


@pytest.mark.parametrize("columns", [60, 80, 118])
@pytest.mark.parametrize("name", ["Add_12", NAME])
def test_a_name_to_copy_is_never_broken(columns: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal and elsewhere; where it has no room beside the reason it goes beneath its row."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    row = ("12", "layer_norm", "ReduceMean + Sub + Pow + Sqrt + Div", name, f"{REASON}; '{name}_output_0' is read")
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stdout", stream)
        screen.show(screen.counted_rows("fused", ("nodes", "first at", "because it"), [row], None), output())
        text = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())
        assert re.search(rf"(?<!\S){re.escape(name)}(?!\S)", text)
        assert f"'{name}_output_0'" in text
        assert ("\n    first at " in text) == (len(name) > 20 or (columns == 60 and stream.isatty()))
        assert set(" ".join(row).split()) <= set(text.split())
