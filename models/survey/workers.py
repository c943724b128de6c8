"""Many subjects at once: each export and each check in a process of its own, with a time limit, a row for each.

A process that crashes, hangs or runs out of memory is a row, and not the end of the survey.
"""

import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.survey import WAYS, Subject
from models.survey.racing import LOCK

ROWS = "rows.jsonl"
"""The results, in the folder of the survey."""

OUT_OF_TIME = "out of time"
"""Why a process ended that was stopped because the whole survey's time was over: no row is written."""


@dataclass(frozen=True)
class Settings:
    """What one call of the survey is to do."""

    stage: str
    folder: Path
    ways: tuple[int, ...]
    """Positions in `WAYS`."""
    jobs: int
    cards: int
    """Of the stage gpu: worker n has card n modulo this."""
    limit: float
    """Seconds of one step."""
    deadline: float
    """`time.monotonic()` when everything ends."""
    side: int
    archs: tuple[str, ...]
    kept: bool
    """The exports stay in the folder."""


class Ended(Exception):  # noqa: N818 - it names what was found, no mistake in this program
    """A process that gave no result; the text says how it ended."""


class Rows:
    """The file of the results: what is there is not done again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / ROWS
        self.lock = threading.Lock()
        self.done = {(r["subject"], r["way"], r["stage"]) for r in read(folder)}

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one row."""
        with self.lock, self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all files of results in a folder, each export's last one."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["subject"], row["way"], row["stage"]] = row
    return list(rows.values())


def survey(subjects: Sequence[Subject], settings: Settings, tell: Any) -> None:
    """Do what is not done yet; `tell(row)` hears of each row as it is written."""
    rows = Rows(settings.folder)
    slots: queue.Queue[int] = queue.Queue()
    for slot in range(settings.jobs):
        slots.put(slot)

    def work(subject: Subject) -> None:
        slot = slots.get()
        try:
            for row in _rows_of(subject, settings, rows.done, slot):
                rows.add(row)
                tell(row)
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(settings.jobs) as pool:
        list(pool.map(work, subjects))


def _rows_of(
    subject: Subject, settings: Settings, done: set[tuple[str, str, str]], slot: int
) -> Iterator[dict[str, Any]]:
    """Yield a row for each way of a subject that is not done."""
    left = [n for n in settings.ways if (subject.name, str(WAYS[n]), settings.stage) not in done]
    with tempfile.TemporaryDirectory(prefix="onnxfuse-survey-") as scratch:
        folder = settings.folder / "exports" if settings.kept else Path(scratch)
        folder.mkdir(exist_ok=True)
        while left and time.monotonic() < settings.deadline:
            for made in _exports(subject, left, settings, folder):
                way = left.pop(0)
                row = {"subject": subject.name, "family": subject.family, "way": str(WAYS[way]),
                       "stage": settings.stage}  # fmt: skip
                if made["error"] == OUT_OF_TIME:
                    return
                row |= {"export_s": made["seconds"]} | ({"static": True} if made["static"] else {})
                if made["error"]:
                    yield row | {"verdict": "no export", "step": "export", "error": made["error"]}
                    continue
                result = _checked(Path(made["file"]), settings, slot)
                if not settings.kept:
                    Path(made["file"]).unlink(missing_ok=True)
                if result["error"] == OUT_OF_TIME:
                    return
                yield row | result


def _exports(subject: Subject, ways: Sequence[int], settings: Settings, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what became of one way after another; where the process ends early, its way's row is the last one."""
    command = ["models.survey.exporting", subject.name, str(folder), *map(str, ways), "--side", str(settings.side)]
    began = time.monotonic()
    nothing = {"file": "", "seconds": 0.0, "static": False}
    count = 0
    try:
        for line in _lines(command, settings, {"CUDA_VISIBLE_DEVICES": ""}):
            yield line
            count += 1
            began = time.monotonic()
    except Ended as how:
        if count < len(ways):
            yield nothing | {"error": str(how), "seconds": round(time.monotonic() - began, 1)}


def _checked(path: Path, settings: Settings, slot: int) -> dict[str, Any]:
    """Return the row of one export, without what is known of it already."""
    command = ["models.survey.check", str(path), "--stage", settings.stage]
    command += [word for arch in settings.archs for word in ("--arch", arch)]
    card = slot % max(settings.cards, 1)
    environment = {
        "CUDA_VISIBLE_DEVICES": str(card),
        LOCK: f"{tempfile.gettempdir()}/onnxfuse-survey-{os.getpid()}-{card}.lock",
    }
    steps: dict[str, float] = {}
    step, began = "start", time.monotonic()
    try:
        for line in _lines(command, settings, environment if settings.stage == "gpu" else {}):
            if "verdict" in line:
                steps[step] = round(time.monotonic() - began, 1)
                return {**line, "seconds": steps}
            steps[step], step, began = round(time.monotonic() - began, 1), line["step"], time.monotonic()
    except Ended as how:
        if str(how) == OUT_OF_TIME:
            return {"error": OUT_OF_TIME}
        verdict = "refused" if step in ("start", "original_on_cpu", "original_on_gpu") else "failed"
        return {"verdict": verdict, "step": step, "error": str(how), "seconds": steps}
    return {"verdict": "failed", "step": step, "error": "it ended without a word", "seconds": steps}


def _lines(command: Sequence[str], settings: Settings, environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of JSON that a module prints, each within the limit; raises Ended where it does not end well."""
    left = settings.deadline - time.monotonic()
    if left <= 0:
        raise Ended(OUT_OF_TIME)
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with tempfile.TemporaryFile("w+") as words:
        child = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=words, text=True,
            env={**os.environ, **one_thread, **environment},
        )  # fmt: skip
        assert child.stdout is not None
        why: list[str] = []
        timer = _killing(child, settings, why)
        try:
            for line in child.stdout:
                timer.cancel()
                yield json.loads(line)
                timer = _killing(child, settings, why)
            code = child.wait()
        finally:
            timer.cancel()
            child.kill()
            child.wait()
        if code or why:
            words.seek(0)
            raise Ended(why[0] if why else _how(code, words.read()))


def _killing(child: "subprocess.Popen[str]", settings: Settings, why: list[str]) -> threading.Timer:
    left = settings.deadline - time.monotonic()
    limit, said = min((settings.limit, f"no answer within {settings.limit:.0f} s"), (left, OUT_OF_TIME))

    def kill() -> None:
        why.append(said)
        child.kill()

    timer = threading.Timer(max(limit, 0.1), kill)
    timer.daemon = True
    timer.start()
    return timer


def _how(code: int, words: str) -> str:
    """Return how a process ended: its signal or code, and the last line that says something."""
    lines = [line for line in words.strip().splitlines() if line.strip()]
    last = next((x for x in reversed(lines) if re.search(r"[Ee]rror|abort|terminate|what\(\)", x)), "")
    ended = f"it crashed (signal {-code})" if code < 0 else f"it ended with {code}"
    return f"{ended}: {last or (lines[-1] if lines else 'no word')}"[:300]
