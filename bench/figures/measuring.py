"""Rows measured, each by a process of its own: prepared side by side, then timed one after the other.

Building, optimizing, compiling and loading take most of the time and measure nothing: as many rows as are given
together prepare at once. Once all of them wait, each card times its own in turn, with nothing else running there. What
is done is kept at once, and not done again.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import TIMEOUT_MAX, Lock, Timer
from typing import Protocol

import click

from bench.apart import Waiting
from bench.figures.data import PROGRESS, ROOT, Row, Rows, Stamp, read, write
from bench.figures.parts import PARTS, Values
from bench.figures.tables import FRONT, PAGES
from onnxfuse.support.errors import UsageError

WRITTEN = (*PAGES, "docs/data/figures.json")
"""What measuring and writing the tables change: no other state of the sources than the commit's."""
SLOWER = 1.3
"""A row may take so many times what it took before; else there is no time for it."""
LAST_WORDS = 3
"""Lines of what a row that failed has said."""
COMPILERS = {"TORCHINDUCTOR_COMPILE_THREADS": "4"}
"""Of torch, in each process: it would start as many as there are cores in each of those that prepare side by side."""


@dataclass(frozen=True)
class Job:
    """A row to measure."""

    part: str
    row: str
    prepares: float
    """Seconds until it waits for its turn, as far as is known."""
    times: float
    """Seconds from then on."""

    @property
    def name(self) -> str:
        """As it is told."""
        return f"{self.part}: {self.row}"


class Begun(Protocol):
    """A row that prepares: `bench.apart.Waiting`."""

    def prepared(self) -> None:
        """Return when it waits for its turn. Raises ClickException."""

    def result(self) -> Values:
        """Let it measure, and return its values. Raises ClickException."""

    def end(self) -> None:
        """Leave nothing of it."""


Begin = Callable[[Job, int], Begun]
"""Begins a row on a card."""


def jobs(rows: Rows, at: str, only: Sequence[str] = (), *, again: bool = False) -> list[Job]:
    """Return what is not measured at this commit, README's table first; `only` are parts, or `part:words of a row`.

    Raises UsageError.
    """
    for word in only:
        of, _, words = word.partition(":")
        if of not in PARTS or not any(words in row for row in PARTS[of].rows):
            raise UsageError(f"{word}: no such part or row", f"There are: {', '.join(PARTS)}.")
    found = []
    for name, part in PARTS.items():
        wanted = [word.partition(":")[2] for word in only if word.partition(":")[0] == name]
        for row in part.rows:
            known = rows.get(name, {}).get(row)
            if only and not any(words in row for words in wanted):
                continue
            if again or known is None or known.stamp.commit != at:
                prepares = SLOWER * known.prepared if known is not None and known.prepared else part.prepares
                found.append(Job(name, row, prepares, SLOWER * known.took if known and known.took else part.times))
    return sorted(found, key=lambda job: job.row not in FRONT)


@dataclass
class Run:
    """A run of the command."""

    at: str
    """The commit."""
    machines: Sequence[dict[str, str]]
    """Facts of each card, as `Stamp` has them."""
    cards: Sequence[int]
    ends: float
    """When all has to be done, by the monotonic clock."""
    begin: Begin
    file: Path = PROGRESS
    faults: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Rows for which there was no time."""
    lock: Lock = field(default_factory=Lock)

    def measure(self, todo: Sequence[Job], together: int) -> None:
        """Measure rows in their order, of which so many prepare side by side, as far as there is time."""
        while chosen := self._fitting(todo, together):
            todo = [job for job in todo if job not in chosen]
            self._measure(chosen)
        self.left += [job.name for job in todo]

    def _fitting(self, todo: Sequence[Job], together: int) -> list[Job]:
        """Return the first rows that can be prepared and timed, as long as that is known to take, before the end."""
        chosen, left = list[Job](), self.ends - time.monotonic()
        for job in todo:
            more = [*chosen, job]
            if len(chosen) < together and max(one.prepares for one in more) + self._timing(more) <= left:
                chosen = more
        return chosen

    def _timing(self, jobs: Sequence[Job]) -> float:
        return sum(job.times for job in jobs) / len(self.cards)

    def _measure(self, jobs: Sequence[Job]) -> None:
        """Prepare rows side by side, then time them one after the other on each card.

        What is not prepared when only the time is left that timing takes, and not done at the end, is ended, and left.
        """
        began, rows = time.monotonic(), list[Measured]()
        for number, job in enumerate(jobs):
            card = number % len(self.cards)
            rows.append(Measured(job, card, self.begin(job, self.cards[card])))
        by = self.ends - self._timing(jobs)
        with _ended(rows, by, lambda row: row.prepared is None), _ended(rows, self.ends, lambda row: True):
            with ThreadPoolExecutor(len(rows)) as pool:
                list(pool.map(self._prepare, rows))
            print(f"prepared side by side: {len(rows)} rows in {time.monotonic() - began:.0f} s", flush=True)
            with ThreadPoolExecutor(len(self.cards)) as pool:
                list(pool.map(self._time_all, [[r for r in rows if r.card == n] for n in range(len(self.cards))]))

    def _prepare(self, row: "Measured") -> None:
        started = time.monotonic()
        try:
            row.process.prepared()
        except click.ClickException as error:
            self._fault(row, error)
        else:
            row.prepared = round(time.monotonic() - started, 1)

    def _time_all(self, rows: Sequence["Measured"]) -> None:
        for row in rows:
            if row.prepared is not None:
                self._time(row, row.prepared)

    def _time(self, row: "Measured", prepared: float) -> None:
        started = time.monotonic()
        try:
            values = row.process.result()
        except click.ClickException as error:
            self._fault(row, error)
            return
        took = round(time.monotonic() - started, 1)
        stamp = Stamp(datetime.now(UTC).isoformat(timespec="seconds"), self.at, **self.machines[row.card])
        with self.lock:
            rows = read(self.file)
            rows.setdefault(row.job.part, {})[row.job.row] = Row(stamp, took, values, prepared)
            write(rows, self.file)
        print(f"{row.job.name}: {took:.1f} s, prepared in {prepared:.0f} s", flush=True)

    def _fault(self, row: "Measured", error: click.ClickException) -> None:
        if row.ended:
            self.left.append(row.job.name)
        else:
            self.faults.append(f"{row.job.name}: {' | '.join(error.message.strip().splitlines()[-LAST_WORDS:])}")


@dataclass
class Measured:
    """A row on its way."""

    job: Job
    card: int
    """Which of those given."""
    process: Begun
    prepared: float | None = None
    """Seconds that it took until it waited for its turn."""
    ended: bool = False
    """Whether there was no more time for it."""


@contextmanager
def _ended(rows: Sequence[Measured], by: float, which: Callable[[Measured], bool]) -> Iterator[None]:
    """End rows when it is time, or all with the block."""

    def end() -> None:
        for row in rows:
            if which(row):
                row.ended = True
                row.process.end()

    watch = Timer(min(by - time.monotonic(), TIMEOUT_MAX), end)
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        for row in rows:
            row.process.end()


def begun(job: Job, card: int) -> Begun:
    """Begin a row in a process that sees one card."""
    command = [sys.executable, "-m", "bench.figures", "row", job.part, job.row, "--card", str(card), "--in-turn"]
    return Waiting(command, card, **COMPILERS)


def machine_of(card: int) -> dict[str, str]:
    """Return the facts of a machine with this card, found by a process that sees no other."""
    command = [sys.executable, "-m", "bench.figures", "machine"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": str(card)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def machine() -> dict[str, str]:
    """Return the card, its driver, and versions, as `Stamp` has them; of the CPU where there is no card."""
    import models
    from onnxfuse.measure.timing.binding import ON_GPU, opened
    from onnxfuse.measure.timing.device import environment
    from onnxfuse.measure.timing.settings import DEFAULT
    from onnxfuse.runtime.engine.cuda_provider import device_count

    providers = ON_GPU if device_count() else ["CPUExecutionProvider"]
    told = environment(opened(models.build("mlp"), DEFAULT, providers, fused=False))
    torch = importlib.import_module("torch").__version__ if importlib.util.find_spec("torch") else ""
    return {
        "card": told["device"], "driver": told.get("driver", ""), "onnxruntime": told["onnxruntime"], "torch": torch,
    }  # fmt: skip
