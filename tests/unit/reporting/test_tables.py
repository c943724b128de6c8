"""Tables of reports: whatever a cell holds is text, and rows that are left out are counted."""

import re

from onnxfuse.reporting.tables import ROWS, number, table


def test_no_cell_is_markup() -> None:
    """Nor a heading, nor what a script finds a row by."""
    text = table(["<a>"], [['"<b>&', 2]], "data-node", key=0)
    assert re.findall(r"<(?!/?(?:div|table|thead|tbody|tr|th|td)\b)", text) == []
    assert 'data-node="&quot;&lt;b&gt;&amp;"' in text
    assert table(["a"], []) == ""


def test_rows_beyond_the_limit_are_counted() -> None:
    rows = [[n] for n in range(ROWS + 2)]
    assert table(["n"], rows[:ROWS]).count("<td>") == ROWS
    assert "more row" not in table(["n"], rows[:ROWS])
    assert table(["n"], rows).count("<td>") == ROWS
    assert table(["n"], rows).endswith("<p>... and 2 more rows: --json has all</p>")


def test_numbers_have_so_many_digits_and_words_stay() -> None:
    assert (number(0.123456), number(1234.5, 2), number("inf")) == ("0.123", "1.2e+03", "inf")
