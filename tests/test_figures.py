"""The figures of the pages: measured once for each commit, kept with where and when, and what the tables say."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from figures import measuring, tables
from figures.__main__ import main
from figures.data import Row, Rows, Stamp, read, write
from figures.parts import PARTS, model_row, printed_row, rules_row
from onnxfuse.model.errors import ModelError, UsageError

CPU = ["CPUExecutionProvider"]
MACHINE = {"card": "a card", "driver": "580.1, CUDA 13.0", "onnxruntime": "1.31.1", "torch": ""}
VALUES = {"settings": {"default": 30.0, "CUDA graph": 20.0}, "fused": 10.0, "compiled": {}, "launches": [9, None]}


def row(commit: str, day: str = "2026-11-20", **values: Any) -> Row:
    """A row of a model as a card would give it."""
    return Row(Stamp(day, commit, **MACHINE), 5.0, VALUES | values)


def test_the_tables_of_the_pages_are_what_was_measured() -> None:
    """Nobody writes a number into them."""
    assert tables.faults(read()) == []


def test_a_table_that_differs_is_a_fault_and_is_written_anew(tmp_path: Path) -> None:
    """With all else of its page as it was."""
    rows: Rows = {"strict": {"resnet50, 32 images": row("abc", original=30.0)}}
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: strict -->\n99 us\n<!-- end of figures -->\nafter\n", encoding="utf-8")
    assert len(tables.faults(rows, ["page.md"], tmp_path)) == 1
    assert list(tables.written(rows, ["page.md"], tmp_path)) == ["page.md"]
    assert tables.faults(rows, ["page.md"], tmp_path) == []
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert "| resnet50, 32 images | 30 | 10 | 3.00x |" in text
    assert "Measured 2026-11-20 at commit abc: a card, driver 580.1, CUDA 13.0, onnxruntime 1.31.1." in text
    assert text.endswith("<!-- end of figures -->\nafter\n")
    page.write_text("<!-- figures: other -->\n<!-- end of figures -->", encoding="utf-8")
    with pytest.raises(UsageError, match="no such table"):
        tables.faults(rows, ["page.md"], tmp_path)


def test_rows_of_another_commit_are_marked_and_told() -> None:
    """In the table that has them, and where a whole table is older than others."""
    names = list(PARTS["models"].rows)
    rows: Rows = {
        "models": {names[0]: row("new", "2026-11-22"), names[1]: row("old")},
        "strict": {"resnet50, 32 images": row("old", original=20.0)},
    }
    text = tables.TABLES["models"](rows)
    assert "| resnet50 float16 | 32 images | 20 | 20 |" in text
    assert "| resnet50 float16¹ | 1 image | 20 | 20 |" in text
    assert "¹ 2026-11-20 at commit old" in text
    assert "9 -> ?" in text
    assert "newest figures of these pages are of commit new" in tables.TABLES["strict"](rows)
    assert "newest figures" not in text
    assert [line.partition(":")[0] for line in tables.older(rows)] == ["models", "strict"]


def test_what_is_measured_is_kept_at_once_and_not_measured_again(tmp_path: Path) -> None:
    """A row that fails or has no time left is told, and done by the next call."""
    file, asked = tmp_path / "figures.json", []

    def apart(part: str, name: str, card: int) -> tuple[dict[str, Any], dict[str, str]]:
        asked.append((part, name, card))
        if name == "gpt2" and len(asked) < 5:
            raise subprocess.CalledProcessError(1, "row", stderr="Traceback\nout of memory\n")
        return VALUES, MACHINE

    todo = list(measuring.jobs(read(file), "abc", ["start"]))
    assert [job.row for job in todo] == ["bert_base", "resnet50", "vit_b_16", "gpt2"]
    faults, left = measuring.measure(todo, "abc", [0, 3], 1000, apart, file)
    assert (faults, left) == (["start: gpt2: out of memory"], [])
    assert {card for _, _, card in asked} <= {0, 3}
    assert read(file)["start"]["bert_base"].values == VALUES
    again = list(measuring.jobs(read(file), "abc", ["start"]))
    assert [job.row for job in again] == ["gpt2"]
    assert measuring.measure(again, "abc", [0], 1, apart, file) == ([], ["start: gpt2"])
    assert measuring.measure(again, "abc", [0], 1000, apart, file) == ([], [])
    assert list(measuring.jobs(read(file), "abc", ["start"])) == []
    assert len(list(measuring.jobs(read(file), "def", ["start:vit"]))) == 1
    assert len(list(measuring.jobs(read(file), "abc", ["start"], again=True))) == 4


def test_what_there_is_not_is_told(tmp_path: Path) -> None:
    """A part, a row, a file that is none, a machine without a GPU."""
    for word in ("engine", "start:alexnet"):
        with pytest.raises(UsageError, match="no such part or row"):
            list(measuring.jobs({}, "abc", [word]))
    (tmp_path / "figures.json").write_text('{"start": {"gpt2": {"took": 1}}}')
    with pytest.raises(ModelError, match="no file of figures"):
        read(tmp_path / "figures.json")
    done = CliRunner().invoke(main, ["measure", "--commit", "abc", "--data", str(tmp_path / "none.json")])
    assert "no GPU here" in str(done.exception)


def test_rows_survive_the_file(tmp_path: Path) -> None:
    """All facts of them."""
    rows: Rows = {"strict": {"resnet50, 32 images": row("abc", original=30.0)}}
    write(rows, tmp_path / "figures.json")
    assert read(tmp_path / "figures.json") == rows


def test_a_model_is_measured_as_the_table_wants_it() -> None:
    """On the CPU: settings by name, the fused model with the interval of its median."""
    found = model_row("training_step", "float32", 4, providers=CPU)
    assert json.loads(json.dumps(found)) == found
    rows: Rows = {"models": {"mlp float16, 4096 rows": Row(Stamp("2026-11-20", "abc", **MACHINE), 1, found)}}
    assert f"**{found['fused']:.0f}**" in tables.TABLES["models"](rows)
    low, high = found["between"]
    assert low <= found["fused"] <= high


def test_a_rule_is_measured_by_leaving_it_out() -> None:
    """The model with all rules, and without each that applied; the rule's page shows it."""
    found = rules_row("training_step", 4, providers=CPU)
    assert set(found["without"]) == {"linear", "reduce"}
    rows: Rows = {"rules": {"gpt2, 8x512 tokens": Row(Stamp("2026-11-20", "abc", **MACHINE), 1, found)}}
    text = tables.of_rule(rows, "linear")
    assert text is not None
    assert f"{found['without']['linear']:.0f} |" in text
    assert tables.of_rule(rows, "attention") is None


def test_what_a_command_prints_is_kept_from_where_the_page_wants_it() -> None:
    """Commands run one after the other in a folder of their own; of the last one a part, and that it is one."""
    commands = [
        "python -c \"open('a.txt', 'w').write('one\\ntwo\\nthree')\"",
        "python -c \"print(open('a.txt').read())\"",
    ]
    found = printed_row(commands, begins="two", lines=1)
    assert found == {"command": commands[-1], "text": "two\n[more rows]"}
    rows: Rows = {"outputs": {"bench": Row(Stamp("2026-11-20", "abc", **MACHINE), 1, found)}}
    assert f"$ {commands[-1]}\ntwo\n[more rows]\n" in tables.TABLES["bench"](rows)
