"""The figures of the pages: measured once for each commit, kept with where and when, and what the tables say."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Lock
from typing import Any
from xml.etree import ElementTree

import pytest
from click import ClickException
from click.testing import CliRunner

from bench.apart import Waiting
from bench.figures import measuring, tables
from bench.figures.__main__ import main
from bench.figures.data import ROOT, Row, Rows, Stamp, merged, publish, read, write
from bench.figures.measuring import SLOWER, Job, Run
from bench.figures.parts import PARTS, model_row, printed_row, rules_row
from onnxfuse.support.errors import ModelError, UsageError

CPU = ["CPUExecutionProvider"]
MACHINE = {"card": "a card", "driver": "580.1, CUDA 13.0", "onnxruntime": "1.31.1", "torch": ""}
VALUES = {"settings": {"default": 30.0, "CUDA graph": 20.0}, "fused": 10.0, "launches": [9, None]}


class Happened:
    """What rows do that only say so: prepare, and measure when it is their turn; `FAILS` and `HANGS` there."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, int]] = []
        self.lock = Lock()
        self.fails: set[str] = set()
        self.hangs: set[str] = set()

    def begin(self, job: Job, card: int) -> "Pretended":
        """Begin one."""
        return Pretended(self, job, card)

    def say(self, what: str, job: Job, card: int) -> None:
        """Keep it."""
        with self.lock:
            self.log.append((what, job.row, card))

    def told(self, what: str) -> list[str]:
        """The rows of which it was said, in order."""
        return [row for said, row, _ in self.log if said == what]


class Pretended:
    """One of them."""

    def __init__(self, happened: Happened, job: Job, card: int) -> None:
        self.happened, self.job, self.card, self.over = happened, job, card, Event()
        happened.say("begun", job, card)

    def prepared(self) -> None:
        """A row that hangs does so until it is ended."""
        if self.job.row in self.happened.hangs:
            self.over.wait()
            raise ClickException("row ends with -9:\n")
        self.happened.say("prepared", self.job, self.card)

    def result(self) -> dict[str, Any]:
        """Its values."""
        self.happened.say("timed", self.job, self.card)
        time.sleep(0.01)
        self.happened.say("done", self.job, self.card)
        if self.job.row in self.happened.fails:
            raise ClickException("row ends with 1:\nTraceback\nout of memory\n")
        return VALUES

    def end(self) -> None:
        """End it."""
        self.over.set()


def run(happened: Happened, file: Path, cards: Sequence[int] = (0,), seconds: float = 1000, at: str = "abc") -> Run:
    """A run of rows that pretend."""
    return Run(at, [MACHINE for _ in cards], cards, time.monotonic() + seconds, happened.begin, file)


def row(commit: str, day: str = "2026-11-20", **values: Any) -> Row:
    """A row of a model as a card would give it."""
    return Row(Stamp(day, commit, **MACHINE), 5.0, VALUES | values)


def test_the_tables_of_the_pages_are_what_was_measured() -> None:
    """Nobody writes a number into them."""
    assert tables.faults(read()) == []
    assert tables.chart_fault(read()) == ""


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
    assert "Measured 2026-11-20 at commit abc: a card, driver 580.1, CUDA 13.0, onnxruntime 1.31.1; `python" in text
    assert text.endswith("<!-- end of figures -->\nafter\n")
    page.write_text("<!-- figures: other -->\n<!-- end of figures -->", encoding="utf-8")
    with pytest.raises(UsageError, match="no such table"):
        tables.faults(rows, ["page.md"], tmp_path)


def test_one_run_is_published() -> None:
    """The newest at one commit on one kind of card, once it has every row that the pages show."""
    first, second, third = list(PARTS["models"].rows)[:3]
    published: Rows = {"models": {first: row("old"), second: row("old")}, "strict": {"x": row("old")}}
    progress: Rows = {"models": {first: row("new", "2026-11-22"), third: row("older", "2026-11-19")}}
    assert publish(published, {}) == published
    assert publish(published, progress) == published
    progress["models"][second] = row("new", "2026-11-23")
    assert publish(published, progress) == published  # a part is left
    progress["strict"] = {"x": row("new", "2026-11-23"), "y": row("older", "2026-11-19")}
    progress["start"] = {"gpt2": row("older", "2026-11-19")}
    found = publish(published, progress)
    assert {name: [*rows] for name, rows in found.items()} == {"models": [first, second], "strict": ["x"]}
    assert {one.stamp.commit for rows in found.values() for one in rows.values()} == {"new"}
    text = tables.TABLES["models"](found)
    assert "| resnet50 float16 | 32 images | 20 | 20 |" in text
    assert "9 -> ?" in text
    assert "Measured 2026-11-23 at commit new: a card, " in text
    assert text.endswith("; `python -m bench.figures measure --only models --only compiled`.")
    other = Stamp("2026-11-24", "new", **(MACHINE | {"card": "another card"}))
    assert publish(found, {"models": {first: Row(other, 1, VALUES)}}) == found
    assert publish(found, {"start": {"gpt2": row("new", "2026-11-24")}}).keys() == {*found, "start"}
    assert merged(published, progress)["models"].keys() == {first, second, third}


NAMED = re.compile(r"(?:at )?commit [0-9a-f]{7,}|`?[0-9a-f]{10}`?(?=: NVIDIA)")


@pytest.mark.parametrize("page", [*tables.PAGES, "models/SURVEY.md"])
def test_a_page_shows_one_run(page: str) -> None:
    """At one commit, which README names too; the survey is a run of its own. What no run wrote is in no table."""
    text = (ROOT / page).read_text(encoding="utf-8")
    commits = {words.split()[-1] for words in NAMED.findall(text)}
    published = {one.stamp.commit for rows in read().values() for one in rows.values()}
    assert len(published) == 1
    assert len(commits) <= 1
    assert page == "models/SURVEY.md" or commits <= published
    by_hand = tables.BLOCK.sub("", text)
    assert page not in ("README.md", "docs/SPEED.md") or not re.search(
        r"^\|.*\d(\.\d+x|\*\*) *\|", by_hand, re.MULTILINE
    )


def test_without_figures_there_is_the_command_that_measures_them() -> None:
    """In place of a table of another run; the page around it describes what is measured."""
    for name, table in tables.TABLES.items():
        assert "|" not in table({}), name
        assert table({}).startswith(
            "Not measured yet for this version. For these figures on your GPU, run `python -m bench.figures"
        )


def test_torch_compile_is_shown_where_it_was_measured() -> None:
    """Its rows are a part of their own."""
    name = tables.FRONT[0]
    rows: Rows = {"models": {name: row("abc")}, "compiled": {}}
    assert "| 20 |  | **10** |" in tables.TABLES["front"](rows)
    rows["compiled"] = {name: Row(row("abc").stamp, 1, {"compile": 16.0, "other": 15.0})}
    for table in ("front", "models"):
        assert "| 20 | 15 | **10** |" in tables.TABLES[table](rows)


def test_what_is_measured_is_kept_at_once_and_not_measured_again(tmp_path: Path) -> None:
    """A row that fails or has no time left is told, and done by the next call."""
    file, happened = tmp_path / "figures.json", Happened()
    happened.fails = {"gpt2"}
    todo = measuring.jobs(read(file), "abc", ["start"])
    assert [job.row for job in todo] == ["bert_base", "resnet50", "vit_b_16", "gpt2"]
    first = run(happened, file, cards=[0, 3])
    first.measure(todo, 8)
    assert (first.faults, first.left) == (["start: gpt2: row ends with 1: | Traceback | out of memory"], [])
    assert {card for _, _, card in happened.log} == {0, 3}
    assert read(file)["start"]["bert_base"].values == VALUES
    assert read(file)["start"]["bert_base"].took >= 0
    again = measuring.jobs(read(file), "abc", ["start"])
    assert [job.row for job in again] == ["gpt2"]
    short = run(happened, file, seconds=1)
    short.measure(again, 8)
    assert (short.faults, short.left) == ([], ["start: gpt2"])
    happened.fails.clear()
    run(happened, file).measure(again, 8)
    assert measuring.jobs(read(file), "abc", ["start"]) == []
    assert len(measuring.jobs(read(file), "abc", ["start"], again=True)) == 4
    assert len(measuring.jobs(read(file), "def", ["start:vit"])) == 1


def test_while_a_row_is_timed_nothing_else_runs(tmp_path: Path) -> None:
    """Neither one that prepares nor another one; as many prepare together as were asked for."""
    happened = Happened()
    todo = measuring.jobs({}, "abc", ["start", "strict"])
    run(happened, tmp_path / "figures.json").measure(todo, 3)
    rows = [job.row for job in todo]
    for words in ([rows[0], rows[1], rows[2]], [rows[3], rows[4]]):
        part, happened.log = happened.log[: 4 * len(words)], happened.log[4 * len(words) :]
        assert [(what, name) for what, name, _ in part[: len(words)]] == [("begun", name) for name in words]
        assert {(what, name) for what, name, _ in part[len(words) : 2 * len(words)]} == {("prepared", n) for n in words}
        in_turn = [(what, name) for what, name, _ in part[2 * len(words) :]]
        assert in_turn == [(what, name) for name in words for what in ("timed", "done")]
    assert happened.log == []


def test_readmes_table_is_measured_first() -> None:
    """With torch.compile; what only the pages of the rules and of the kernels show comes last."""
    todo = measuring.jobs({}, "abc")
    assert {(job.part, job.row) for job in todo[:8]} == {(p, r) for p in ("models", "compiled") for r in tables.FRONT}
    assert [job.part for job in todo[8:]] == sorted((job.part for job in todo[8:]), key=list(PARTS).index)
    assert [job.part for job in todo][-13:] == ["rules"] * 6 + ["kernels"] * 7


def test_a_row_is_begun_only_where_there_is_time_for_it(tmp_path: Path) -> None:
    """By what it is known to take; a shorter one may still fit."""
    file, happened = tmp_path / "figures.json", Happened()
    before = Stamp("2026-11-20", "old", **MACHINE)
    took = {"bert_base": (30.0, 10.0), "resnet50": (5.0, 90.0), "vit_b_16": (20.0, 5.0), "gpt2": (90.0, 1.0)}
    write({"start": {name: Row(before, t, VALUES, prepared=p) for name, (p, t) in took.items()}}, file)
    todo = measuring.jobs(read(file), "abc", ["start"])
    assert (todo[0].prepares, todo[0].times) == (SLOWER * 30, SLOWER * 10)
    one = run(happened, file, seconds=SLOWER * 46)
    one.measure(todo, 8)
    assert happened.told("timed") == ["bert_base", "vit_b_16"]
    assert sorted(one.left) == ["start: gpt2", "start: resnet50"]


def test_a_row_that_does_not_get_ready_is_ended(tmp_path: Path) -> None:
    """When no more time is left than the others need; they are timed, and it is left for another call."""
    happened = Happened()
    happened.hangs = {"resnet50"}
    todo = [Job("start", name, prepares=0.1, times=0.6) for name in ("bert_base", "resnet50", "gpt2")]
    one = run(happened, tmp_path / "figures.json", seconds=2)
    one.measure(todo, 8)
    assert time.monotonic() < one.ends
    assert happened.told("done") == ["bert_base", "gpt2"]
    assert (one.faults, one.left) == ([], ["start: resnet50"])


def test_a_process_prepares_and_waits_for_its_turn(tmp_path: Path) -> None:
    """It goes on at a word, whatever else is printed and whichever child outlives it."""
    here = tmp_path / "timed"
    code = f"""
import subprocess, sys
from bench.apart import attend, leave, wait
attend()
print("noise")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
wait()
open({str(here)!r}, "w")
print("more noise")
leave({{"found": child.pid}})
"""
    waiting = Waiting([sys.executable, "-c", code], 0)
    waiting.prepared()
    assert not here.exists()
    begun = time.monotonic()
    found = waiting.result()
    assert time.monotonic() - begun < 30
    os.kill(found["found"], signal.SIGKILL)
    assert here.exists()


def test_a_process_that_waits_for_nobody_ends() -> None:
    """And one that fails before its turn is told with its last words."""
    broken = Waiting([sys.executable, "-c", "raise SystemExit('no memory')"], 0)
    with pytest.raises(ClickException, match="ends with 1:\nno memory"):
        broken.prepared()
    code = "from bench.apart import leave, wait; wait(); leave(1)"
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (1, "what waited for this process has ended")


def test_what_there_is_not_is_told(tmp_path: Path) -> None:
    """A part, a row, a file that is none, a machine without a GPU."""
    for word in ("engine", "start:alexnet"):
        with pytest.raises(UsageError, match="no such part or row"):
            measuring.jobs({}, "abc", [word])
    (tmp_path / "figures.json").write_text('{"runs": [], "parts": {"start": {"gpt2": {"run": 0, "took": 1}}}}')
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
    assert set(found["without"]) == {"linear", "outer_product", "reduce"}
    rows: Rows = {"rules": {"gpt2, 8x512 tokens": Row(Stamp("2026-11-20", "abc", **MACHINE), 1, found)}}
    text = tables.of_rule(rows, "linear")
    assert text is not None
    assert f"{found['without']['linear']:.0f} |" in text
    assert tables.of_rule(rows, "attention") is None


def test_what_a_command_prints_is_kept() -> None:
    """It runs in a folder of its own, and that it fails is told."""
    command = "python -c \"import os; print('one\\ntwo', os.listdir())\""
    turns = []
    found = printed_row(command, turn=lambda: turns.append(1))
    assert turns == [1]
    assert found == {"command": command, "text": "one\ntwo []"}
    rows: Rows = {"kernels": {"bandwidth": Row(Stamp("2026-11-20", "abc", **MACHINE), 1, found)}}
    assert f"$ {command}\none\ntwo []\n" in tables.TABLES["kernels"](rows)
    with pytest.raises(ClickException, match=r"^python -c 'raise SystemExit\(4\)': ends with 4$"):
        printed_row("python -c 'raise SystemExit(4)'")


def test_a_converted_file_stands_beside_its_native_twin() -> None:
    """How much slower it is, and what stays in float32."""
    values = {"settings": {"plain: NHWC": 300.0}, "native": 100.0, "fused": 101.0, "kept": [2, 40]}
    rows = {"precision": {"resnet50": Row(Stamp("2026-11-23T00:00:00+00:00", "a" * 10, **MACHINE), 1.0, values)}}
    (line,) = [line for line in tables.TABLES["precision"](rows).splitlines() if line.startswith("| resnet50")]
    assert line == "| resnet50 | 300 | 100 | **101** | +1.0% | **2.97x** | 2 of 40 |"


def test_the_chart_of_the_front_page_is_what_was_published(tmp_path: Path) -> None:
    """A bar for each model and for torch.compile where it has the same run; a file that differs is written anew."""
    rows = read()
    (tmp_path / "docs" / "data").mkdir(parents=True)
    assert "python -m bench.figures write" in tables.chart_fault(rows, tmp_path)
    assert list(tables.chart_written(rows, tmp_path)) == ["docs/data/speedup.svg"]
    assert list(tables.chart_written(rows, tmp_path)) == []
    chart = ElementTree.parse(tmp_path / "docs" / "data" / "speedup.svg").getroot()
    fused = [bar for bar in chart.iter("{http://www.w3.org/2000/svg}rect") if bar.get("class") == "fused"]
    assert len(fused) == len(rows["models"]) + 1  # and the key
    factors = [text.text for text in chart.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "number"]
    assert "2.56x" in factors
