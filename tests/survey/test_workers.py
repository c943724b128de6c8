"""The survey's processes: whatever one of them does, there is a row, and the next one is asked."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

import models
from models.survey import AS_EXPORTED, TRACE, WAYS, Subject, Way, place, workers
from models.survey.__main__ import main
from models.survey.workers import OUT_OF_TIME, Child, Ended, Exporter, Settings
from tests.survey.exports import exported

ASKED = (0, 9)
"""Positions of the ways that these surveys are of: exporters of torch."""

MISBEHAVING = ["tests.survey.misbehaving"]


def settings(folder: Path, limit: float = 30.0, seconds: float = 300.0, *, again: bool = False) -> Settings:
    return Settings("cpu", folder, ASKED, 1, 1, limit, time.monotonic() + seconds, 64, ("sm_80",), False, again)


def ended(asked: str, folder: Path, **times: Any) -> str:
    """Return how the process ends that is asked this after a word that it repeats."""
    child = Child(MISBEHAVING, settings(folder, **times), {})
    try:
        assert child.answer("hello\n") == {"said": "hello"}
        with pytest.raises(Ended) as how:
            child.answer(asked)
        return str(how.value)
    finally:
        child.end()


def test_how_a_process_ended_is_told(tmp_path: Path) -> None:
    """A crash by its signal and last words, a hang by the limit, the end of the survey's time as that."""
    assert ended("crash\n", tmp_path) == "it crashed (signal 11): terminate called: out of luck"
    assert ended("hang\n", tmp_path, limit=3.0) == "no answer within 3 s"
    assert ended("hang\n", tmp_path, seconds=3.0) == OUT_OF_TIME


class Exports:
    """Stands in for the process that exports: one model is written, others do not export or end the process."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.folder = folder

    def export(self, name: str, way: int) -> dict[str, Any]:
        nothing = {"file": "", "static": False, "seconds": 0.1}
        match name:
            case "plain:refused":
                return nothing | {"error": "ValueError: no"}
            case "plain:endless":
                return nothing | {"error": OUT_OF_TIME}
        file = place(self.folder, name, WAYS[way])
        file.parent.mkdir(parents=True)
        if name == "plain:beside":
            exported(AS_EXPORTED, file)
        elif name == "plain:broken":
            file.write_bytes(b"no model")
        else:
            onnx.save(models.build("mlp", batch=2, hidden=4), file)
        return nothing | {"file": str(file), "error": ""}

    def end(self) -> None:
        """Nothing runs."""


def test_every_export_has_its_row_and_none_is_done_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows for what is right, what is refused, what has no export; none for what was stopped, or is there already."""
    monkeypatch.setattr(workers, "Exporter", Exports)
    subjects = [Subject(f"plain:{name}", name) for name in ("mlp", "refused", "endless", "broken")]
    told: list[Any] = []
    left = workers.survey(subjects, settings(tmp_path), told.append)
    assert left == [f"plain:endless, {WAYS[n]}" for n in ASKED]
    rows = {(r["subject"], r["way"]): r for r in workers.read(tmp_path)}
    assert len(rows) == len(told) == 6
    for way in (str(WAYS[n]) for n in ASKED):
        assert rows["plain:mlp", way]["verdict"] == "right", rows["plain:mlp", way]
        assert rows["plain:refused", way]["error"] == "ValueError: no"
        broken = rows["plain:broken", way]
        assert (broken["verdict"], broken["step"]) == ("refused", "original_on_cpu")
    assert (tmp_path / workers.ROWS).read_text().count("\n") == 6
    workers.survey(subjects, settings(tmp_path), told.append)
    assert len(told) == 6
    assert workers.survey(subjects, settings(tmp_path, seconds=0.0), told.append) == left


@pytest.mark.parametrize("kept", [False, True])
def test_data_beside_an_export_goes_and_stays_with_it(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts for the size of the row, and nothing of an export is left where it is not kept."""
    monkeypatch.setattr(workers, "Exporter", Exports)
    seen: list[list[str]] = []

    def checked(path: Path, settings: Settings, slot: int) -> dict[str, Any]:
        seen.append([str(f) for f in path.parent.iterdir()])
        return {"verdict": "right", "step": "", "error": ""}

    monkeypatch.setattr(workers, "_checked", checked)
    told: list[Any] = []
    subjects = [Subject(f"plain:{name}", name) for name in ("beside", "refused")]
    workers.survey(subjects, replace(settings(tmp_path), kept=kept), told.append)
    assert len(told) == 2 * len(ASKED)
    assert [len(files) for files in seen] == [2] * len(ASKED)
    assert all(row["bytes"] > 33_000 for row in told if row["subject"] == "plain:beside")
    assert {Path(file).exists() for files in seen for file in files} == {kept}
    assert not any(folder.is_dir() and "refused" in folder.name for folder in tmp_path.rglob("*"))


def test_each_subject_is_exported_by_its_own_exporters_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all of their ways, or in the first, which is the exporter's default."""
    monkeypatch.setattr(workers, "Exporter", Exports)
    monkeypatch.setattr(workers, "_checked", lambda *_: {"verdict": "right", "step": "", "error": ""})
    subjects = [Subject(f"{name}:mlp", name) for name in ("plain", "keras", "paddle")]
    for first in (False, True):
        told: list[Any] = []
        asked = replace(settings(tmp_path / str(first)), ways=tuple(range(len(WAYS))), first=first)
        workers.survey(subjects, asked, told.append)
        found = {s.name: [row["way"] for row in told if row["subject"] == s.name] for s in subjects}
        assert found["keras:mlp"] == ["tf2onnx default float32 dynamic"]
        assert found["paddle:mlp"] == ["paddle2onnx default float32 dynamic"]
        assert found["plain:mlp"][0] == "dynamo default float32 static"
        assert len(found["plain:mlp"]) == (1 if first else len(WAYS) - 2)


def test_a_process_exports_for_one_exporter_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow and Paddle in one process end it: it is begun anew where the exporter is another."""
    begun: list[str] = []

    class Echo:
        def __init__(self, *_: Any) -> None:
            begun.append("begun")

        def answer(self, asked: str) -> dict[str, Any]:
            return {"error": asked}

        def end(self) -> None:
            begun.append("ended")

    monkeypatch.setattr(workers, "Child", Echo)
    exporter = Exporter(settings(tmp_path), tmp_path)
    for name in ("plain:a", "timm:b", "keras:c", "keras:d", "paddle:e", "plain:f"):
        assert exporter.export(name, 0)["error"] == f"{name} 0\n"
    assert begun == ["begun", *["ended", "begun"] * 3]


def test_what_torch_does_not_compile_keeps_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the fused model is there, and why there is none to compare with; what was not timed is not asked."""
    monkeypatch.setattr(workers, "Exporter", Exports)
    timed = {"verdict": "right", "step": "", "error": "", "over": 2.0, "sizes": {"batch": 8}}
    for checked in (timed, {"verdict": "refused", "step": "optimized", "error": "no"}):
        monkeypatch.setattr(workers, "_checked", lambda *_, checked=checked: checked)
        told: list[Any] = []
        asked = replace(settings(tmp_path / str(checked["verdict"])), compiled=True, ways=(0,))
        workers.survey([Subject("plain:none-of-this-name", "none")], asked, told.append)
        (row,) = told
        assert bool(row.pop("not_compiled", "")) == ("over" in checked)
        assert row.items() >= checked.items()


def test_rows_of_several_shards_are_read_together(tmp_path: Path) -> None:
    """Each export's last row counts, wherever it was written."""
    row = {"subject": "plain:tcn", "way": "trace", "stage": "cpu"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row | {"verdict": "failed"}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps(row | {"verdict": "right"}) + "\n" + json.dumps(row | {"way": "x"}))
    assert [r.get("verdict") for r in workers.read(tmp_path)] == ["right", None]
    apart = tmp_path / "of the GPU"
    apart.mkdir()
    (apart / "rows.jsonl").write_text(json.dumps(row | {"stage": "gpu", "verdict": "right"}))
    together = workers.read(tmp_path, apart / "rows.jsonl")
    assert [(r["stage"], r.get("verdict")) for r in together] == [("cpu", "right"), ("cpu", None), ("gpu", "right")]


def test_what_failed_is_done_again_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was right, or not exported, keeps its row."""
    monkeypatch.setattr(workers, "Exporter", Exports)
    verdicts = {"mlp": "failed", "other": "right", "refused": "no export"}
    (tmp_path / workers.ROWS).write_text("".join(
        json.dumps({"subject": f"plain:{name}", "way": str(WAYS[way]), "stage": "cpu", "verdict": verdict}) + "\n"
        for name, verdict in verdicts.items() for way in ASKED))  # fmt: skip
    told: list[Any] = []
    subjects = [Subject(f"plain:{name}", name) for name in verdicts]
    workers.survey(subjects, settings(tmp_path), told.append)
    assert not told
    workers.survey(subjects, settings(tmp_path, again=True), told.append)
    assert [(r["subject"], r["verdict"]) for r in told] == [("plain:mlp", "right")] * 2


def test_a_report_is_written_of_rows_from_several_places(tmp_path: Path) -> None:
    """Nothing is surveyed, and the stages that were run apart are on one page."""
    row = {"subject": "plain:tcn", "family": "tcn", "way": str(WAYS[0]), "verdict": "right", "step": "", "error": ""}
    for stage in ("cpu", "gpu"):
        (tmp_path / f"{stage}.jsonl").write_text(json.dumps(row | {"stage": stage}) + "\n")
    page = tmp_path / "page.md"
    places = [word for stage in ("gpu", "cpu") for word in ("--rows", str(tmp_path / f"{stage}.jsonl"))]
    done = CliRunner().invoke(main, [*places, "--report", str(page)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [line for line in page.read_text().splitlines() if line.startswith("## ")] == [
        "## Stage cpu, as exporters write them by default",
        "## Stage gpu, as exporters write them by default",
    ]
    assert CliRunner().invoke(main, places).exit_code == 2


def test_what_stays_open_in_an_export() -> None:
    """Nothing, the batch, or the sizes of images, too; what has no such sizes is not exported a second time."""
    image = {"image": {0: "batch", 2: "height", 3: "width"}}
    tokens = {"ids": {0: "batch", 1: "sequence"}}
    static, batch, sizes = (Way(TRACE, 17, "float16", *opened) for opened in ((False,), (True,), (True, True)))
    assert static.opened(image) == {"image": {}}
    assert batch.opened(image) == {"image": {0: "batch"}}
    assert batch.opened(tokens) == tokens
    assert sizes.opened(image) == image
    with pytest.raises(ValueError, match="no sizes to leave open"):
        sizes.opened(tokens)
