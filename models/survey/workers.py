"""Many subjects at once: each export and each check in a process of its own, with a time limit, a row for each.

A process that crashes, hangs or runs out of memory is a row, and not the end of the survey.
"""

import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.survey import TORCH, WAYS, Subject, files, place
from models.survey.cards import LOCK
from models.survey.catalogue import ways_of

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
    """Positions in `WAYS`; a subject is exported in those of them that its exporters have."""
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
    again: bool = False
    """What failed is done once more."""
    compiled: bool = False
    """What was timed is timed under torch.compile, too."""
    first: bool = False
    """Each subject in the first of its ways alone."""
    run: str = ""
    """Command, date, commit and cards: each row has them."""


class Ended(Exception):  # noqa: N818 - it names what was found, no mistake in this program
    """A process that gave no result; the text says how it ended."""


class Rows:
    """The file of the results: what is there is not done again, unless it failed and is asked for `again`."""

    def __init__(self, folder: Path, *, again: bool, run: str = "") -> None:
        self.run = run
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / ROWS
        self.lock = threading.Lock()
        kept = [r for r in read(folder) if not (again and r["verdict"] == "failed")]
        self.done = {(r["subject"], r["way"], r["stage"]) for r in kept}

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one row."""
        with self.lock, self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "run": self.run}) + "\n")


def read(*places: Path) -> list[dict[str, Any]]:
    """Return the rows of files of results, or of all such files in a folder: each export's last one."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for file in (f for at in places for f in (sorted(at.glob("*.jsonl")) if at.is_dir() else [at])):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["subject"], row["way"], row["stage"]] = row
    return list(rows.values())


def survey(subjects: Sequence[Subject], settings: Settings, tell: Callable[[Mapping[str, Any]], None]) -> list[str]:
    """Do what is not done yet, and return what is left at the deadline; `tell(row)` hears of each row."""
    rows = Rows(settings.folder, again=settings.again, run=settings.run)
    work: queue.SimpleQueue[tuple[Subject, int]] = queue.SimpleQueue()
    todo = {s: [n for n in ways_of(s.name) if n in settings.ways][: 1 if settings.first else None] for s in subjects}
    for number in settings.ways:  # each subject in one way before any in the next one
        for subject in subjects:
            if number in todo[subject] and (subject.name, str(WAYS[number]), settings.stage) not in rows.done:
                work.put((subject, number))

    left: list[tuple[Subject, int]] = []

    def worker(slot: int) -> None:
        with tempfile.TemporaryDirectory(prefix="onnxfuse-survey-") as scratch:
            folder = settings.folder / "exports" if settings.kept else Path(scratch)
            folder.mkdir(exist_ok=True)
            exporter = Exporter(settings, folder)
            while time.monotonic() < settings.deadline:
                try:
                    subject, way = work.get_nowait()
                except queue.Empty:
                    break
                row = _row(subject, way, exporter, settings, slot)
                if row["error"] == OUT_OF_TIME:
                    left.append((subject, way))
                    continue
                rows.add(row)
                tell(row)
            exporter.end()

    with ThreadPoolExecutor(settings.jobs) as pool:
        list(pool.map(worker, range(settings.jobs)))
    while not work.empty():
        left.append(work.get_nowait())
    return [f"{subject.name}, {WAYS[way]}" for subject, way in left]


def _row(subject: Subject, way: int, exporter: "Exporter", settings: Settings, slot: int) -> dict[str, Any]:
    """Return the row of one export; its error is OUT_OF_TIME where it was not finished."""
    row: dict[str, Any] = {"subject": subject.name, "family": subject.family, "way": str(WAYS[way]),
                           "stage": settings.stage}  # fmt: skip
    home, kept = place(exporter.folder, subject.name, WAYS[way]).parent, settings.kept
    try:
        made = exporter.export(subject.name, way)
        row |= {"export_s": made["seconds"]} | ({"static": True} if made["static"] else {})
        if made["error"]:
            kept = False
            return row | {"verdict": "no export", "step": "export", "error": made["error"]}
        file = Path(made["file"])
        row |= {"bytes": files.size(file)} | _checked(file, settings, slot)
        if settings.compiled and "over" in row and WAYS[way].exporter in TORCH:
            row |= _compiled(subject.name, way, file, row["sizes"], settings, slot)
        return row
    finally:
        if not kept:
            shutil.rmtree(home, ignore_errors=True)


class Exporter:
    """A process that exports one after another, begun anew where one export ends it, and for another exporter.

    TensorFlow and Paddle in one process end it by a segmentation fault.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.child: Child | None = None
        self.ways: tuple[int, ...] = ()
        """Of the models that the process exports."""

    def export(self, name: str, way: int) -> dict[str, Any]:
        """Return what became of one export, as `exporting.Exported` tells it."""
        began = time.monotonic()
        if ways_of(name) != self.ways:
            self.end()
            self.ways = ways_of(name)
        try:
            if self.child is None:
                command = ["models.survey.exporting", str(self.folder), "--side", str(self.settings.side)]
                self.child = Child(command, self.settings, {"CUDA_VISIBLE_DEVICES": ""})
            return self.child.answer(f"{name} {way}\n")
        except Ended as how:
            self.end()
            return {"file": "", "static": False, "error": str(how), "seconds": round(time.monotonic() - began, 1)}

    def end(self) -> None:
        """End the process."""
        if self.child is not None:
            self.child.end()
        self.child = None


def _checked(path: Path, settings: Settings, slot: int) -> dict[str, Any]:
    """Return the row of one export, without what is known of it already."""
    command = ["models.survey.check", str(path), "--stage", settings.stage]
    command += [word for arch in settings.archs for word in ("--arch", arch)]
    steps: dict[str, float] = {}
    step, began = "start", time.monotonic()
    child = Child(command, settings, _card(settings, slot) if settings.stage == "gpu" else {})
    try:
        while True:
            line = child.answer()
            steps[step] = round(time.monotonic() - began, 1)
            if "verdict" in line:
                return {**line, "seconds": steps}
            step, began = line["step"], time.monotonic()
    except Ended as how:
        if str(how) == OUT_OF_TIME:
            return {"error": OUT_OF_TIME}
        verdict = "refused" if step in ("start", "original_on_cpu", "original_on_gpu") else "failed"
        return {"verdict": verdict, "step": step, "error": str(how), "seconds": steps}
    finally:
        child.end()


def _card(settings: Settings, slot: int) -> dict[str, str]:
    """Return the environment that gives a worker its card, and the clock that it shares there."""
    card = slot % max(settings.cards, 1)
    lock = f"{tempfile.gettempdir()}/onnxfuse-survey-{os.getpid()}-{card}.lock"
    return {"CUDA_VISIBLE_DEVICES": str(card), LOCK: lock}


def _compiled(
    name: str, way: int, path: Path, sizes: Mapping[str, int], settings: Settings, slot: int
) -> dict[str, Any]:
    """Return what torch.compile adds to a row: its best time and ours over it, or why there is none."""
    command = ["models.survey.compiling", name, str(way), str(path), "--side", str(settings.side)]
    command += ["--sizes", json.dumps(dict(sizes))]
    child = Child(command, settings, {**_card(settings, slot), "TORCHINDUCTOR_COMPILE_THREADS": "1"})
    try:
        return child.answer()
    except Ended as how:
        return {"not_compiled": str(how)}
    finally:
        child.end()


class Child:
    """A process that answers with lines of JSON, each within the limit."""

    def __init__(self, command: Sequence[str], settings: Settings, environment: Mapping[str, str]) -> None:
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.settings = settings
        self.words = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words,
            text=True, env={**os.environ, **one_thread, **environment},
        )  # fmt: skip

    def answer(self, asked: str = "") -> dict[str, Any]:
        """Return the next line, after `asked` was said; raises Ended where none comes."""
        left = self.settings.deadline - time.monotonic()
        limit = self.settings.limit
        seconds, said = min((limit, f"no answer within {limit:.0f} s"), (max(left, 0.0), OUT_OF_TIME))
        why: list[str] = []

        def kill() -> None:
            why.append(said)
            self.process.kill()

        timer = threading.Timer(seconds, kill)
        timer.start()
        try:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            if asked:
                self.process.stdin.write(asked)
                self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        code = self.process.wait()
        self.words.seek(0)
        raise Ended(why[0] if why else _how(code, self.words.read()))

    def end(self) -> None:
        """End the process, if it has not ended."""
        self.process.kill()
        self.process.communicate()
        self.words.close()


def _how(code: int, words: str) -> str:
    """Return how a process ended: its signal or code, and the last line that says something."""
    lines = [line for line in words.strip().splitlines() if line.strip()]
    last = next((x for x in reversed(lines) if re.search(r"[Ee]rror|abort|terminate|what\(\)", x)), "")
    ended = f"it crashed (signal {-code})" if code < 0 else f"it ended with {code}"
    return f"{ended}: {last or (lines[-1] if lines else 'no word')}"[:300]
