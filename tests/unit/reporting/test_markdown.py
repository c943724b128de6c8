"""Markdown keeps to its tables, and below the limit of GitHub."""

from onnxfuse.reporting.markdown import ROWS, markdown

NASTY = 'a<b>&"c"|d`e`\x00\x1b]]>\n::error::% ,'


def test_markdown_keeps_to_its_tables_and_below_a_mebibyte() -> None:
    """Names cannot break a row; a model with ten thousand outputs gets the first rows and a count."""
    row = {"output": NASTY * 20, "dtype": "float32", "error": 1.0, "budget": 2.0, "max_abs": 1.0, "max_rel": "inf",
           "verdict": "ok", "fault": ""}  # fmt: skip
    facts = {"ok": False, "summary": "x", "seconds": 1.0, "outputs": [row] * 10_000, "problems": [NASTY] * 10_000}
    text = markdown("verify", facts)
    assert len(text.encode()) < 2**20
    assert f"{10_000 - ROWS} more rows" in text
    table = [line for line in text.splitlines() if line.startswith("| a")]
    assert table
    assert {line.replace("\\|", "").count("|") for line in table} == {10}
