"""Markdown keeps to its tables, and below the limit of GitHub."""

import re
from typing import Any

from onnxfuse.reporting import checks, page
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


def test_an_output_that_is_judged_by_parts_shows_no_error() -> None:
    """Beside ok an error above what is allowed would contradict it: in no report of a file is there one."""
    row: dict[str, Any] = {"output": "y", "dtype": "float32", "error": 0.75, "budget": 0.25, "own": 0.5, "scale": 8.0,
                           "max_abs": 0.125, "max_rel": 2.0, "verdict": "ok", "fault": ""}  # fmt: skip
    facts: dict[str, Any] = {
        "ok": True, "verdict": "ok", "seconds": 1.0, "outputs": [row], "problems": [], "cases": [], "provider": "CPU",
        "truth": {"kind": "float64", "how": "reference"},
    }  # fmt: skip
    shown = "| y | float32 | 0.75 | 0.25 | 8 | 0.12 | 2 |  | ok |"
    assert shown in markdown("verify", facts)
    assert checks("verify", facts)[0].text == "error 0.75, allowed 0.25, values to 8"
    assert "300% of the error allowed" in _page(facts)
    row["judged_by"] = "parts"
    assert "| y | float32 | - | by parts | 8 | 0.12 | 2 |  | ok by parts |" in markdown("verify", facts)
    assert checks("verify", facts)[0].text == "judged by the model's parts; moved by at most 0.12, values to 8"
    text = _page(facts)
    assert re.search("<td>y</td><td>float32</td><td>-</td><td>by parts</td><td>-</td><td>0.125</td>", text)
    assert "the error allowed" not in text


def test_undo_names_the_operators_that_are_not_as_they_were() -> None:
    """With both counts, below how far the original is back."""
    back = {"summary": "4 of 5 are back", "operators": {"Cast": {"original": 2, "after": 1}}}
    facts = {"ok": True, "source": "a", "nodes": {"before": 3, "after": 4}, "undone": 1, "back": back, "seconds": 1.0,
             "not_met": [], "notes": [], "rules": {}, "fused_nodes": 0}  # fmt: skip
    text = markdown("optimize", facts)
    assert "\n4 of 5 are back\n" in text
    assert "### Operators\n\n| operator | original | now |\n|---|---|---|\n| Cast | 2 | 1 |\n" in text


def _page(facts: dict[str, Any]) -> str:
    return page("verify", facts, {}, "onnxfuse verify", {})
