"""A result has one screen: on a console, as text, and as HTML."""

import io

from rich.markup import escape

from onnxfuse.support.screen import Blocks, Line, Rows, SafeConsole, Screen, advice, counted_rows, plain_table, show

EVIL = "<b>[red]\x1b[2J"


class Found(Screen):
    """A result with a name from a file in it."""

    def screen(self) -> Blocks:
        """Return a verdict, a table with bars, rows beyond a limit, and what to do next."""
        yield Line(f"[bold red]failed:[/] {escape(EVIL)}")
        table = plain_table("op", "us", right=("us",))
        for us in (1, 4):
            table.add_row(escape(EVIL), str(us))
        yield Rows(table, bars=(1, 4))
        yield from counted_rows("places", ("why",), [("1", "r", "a"), ("2", "r", "b")], 1)
        yield advice("next: onnxfuse explain")


def test_a_hint_is_for_the_command_line_alone() -> None:
    """Python has no flags; that there are more rows is told to both."""
    stream = io.StringIO()
    show(Found().screen(), SafeConsole.of(stream))
    assert stream.getvalue().splitlines()[-2:] == ["... and 1 more row: --all", "next: onnxfuse explain"]
    assert str(Found()).splitlines()[-1] == "... and 1 more row"
    assert repr(Found()) == str(Found())


def test_names_are_neither_markup_nor_html_nor_control_characters() -> None:
    """In lines and in cells, in each of the forms."""
    page, text = Found()._repr_html_(), str(Found())
    assert text.count("<b>[red]\\x1b[2J") == 3
    assert page.count("&lt;b&gt;[red]\\x1b[2J") == 3
    assert "\x1b" not in page + text


def test_a_notebook_gets_colors_and_bars() -> None:
    """Bold is bold, the longest bar is that of the largest number."""
    page = Found()._repr_html_()
    assert page.startswith('<p><b><span style="color:#800000">failed:</span></b> ')
    assert page.count("width:40px") == page.count("width:160px") == 1
    assert "onnxfuse explain" not in page
