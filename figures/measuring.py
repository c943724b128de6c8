"""Rows measured, each by a process of its own on one card; what is done is kept at once, and not done again."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from figures.data import FILE, ROOT, Row, Rows, Stamp, read, write
from figures.parts import PARTS, Values
from figures.tables import PAGES
from onnxfuse.model.errors import UsageError

WRITTEN = (*PAGES, "docs/figures.json")
"""What measuring and writing the tables change: no other state of the sources than the commit's."""
SLOWER = 1.3
"""A row may take so many times what it took before; else there is no time for it."""

Apart = Callable[[str, str, int], tuple[Values, dict[str, str]]]
"""Measures a row of a part on a card: its values, and facts of the machine. Raises CalledProcessError."""


@dataclass(frozen=True)
class Job:
    """A row to measure."""

    part: str
    row: str
    seconds: float
    """That it takes, as far as is known."""


def commit() -> str:
    """Return the abbreviated commit of the sources, with "+" where they differ from it. Raises UsageError."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        excluded = [f":!{name}" for name in WRITTEN]
        status = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", *excluded]
        changed = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        raise UsageError("the sources are no clone: their commit is not known", "Give it: --commit HASH") from None
    return f"{head}+" if changed else head


def jobs(rows: Rows, at: str, only: Sequence[str] = (), *, again: bool = False) -> Iterator[Job]:
    """Yield what is not measured at this commit; `only` are parts, or `part:words of a row`. Raises UsageError."""
    for word in only:
        of, _, words = word.partition(":")
        if of not in PARTS or not any(words in row for row in PARTS[of].rows):
            raise UsageError(f"{word}: no such part or row", f"There are: {', '.join(PARTS)}.")
    for name, part in PARTS.items():
        wanted = [word.partition(":")[2] for word in only if word.partition(":")[0] == name]
        for row in part.rows:
            known = rows.get(name, {}).get(row)
            if only and not any(words in row for words in wanted):
                continue
            if again or known is None or known.stamp.commit != at:
                yield Job(name, row, SLOWER * known.took if known is not None and known.took else part.seconds)


def measure(
    todo: Sequence[Job], at: str, cards: Sequence[int], seconds: float, apart: Apart, file: Path = FILE
) -> tuple[list[str], list[str]]:
    """Measure rows on `cards` side by side, each kept in `file` when it is done; return faults, and what is left.

    A row is begun only where the time that it is known to take is left of `seconds`.
    """
    begun = time.monotonic()
    free: SimpleQueue[int] = SimpleQueue()
    for card in cards:
        free.put(card)
    lock, faults, left = Lock(), list[str](), list[str]()

    def one(job: Job) -> None:
        card = free.get()
        try:
            if time.monotonic() - begun + job.seconds > seconds:
                left.append(f"{job.part}: {job.row}")
                return
            started = time.monotonic()
            values, machine = apart(job.part, job.row, card)
            took = round(time.monotonic() - started, 1)
            stamp = Stamp(datetime.now(UTC).isoformat(timespec="seconds"), at, **machine)
            with lock:
                rows = read(file)
                rows.setdefault(job.part, {})[job.row] = Row(stamp, took, values)
                write(rows, file)
            print(f"{job.part}: {job.row}: {took:.0f} s", flush=True)
        except subprocess.CalledProcessError as error:
            told = (error.stderr or "").strip().splitlines()
            faults.append(f"{job.part}: {job.row}: {told[-1] if told else f'ended with {error.returncode}'}")
        finally:
            free.put(card)

    with ThreadPoolExecutor(len(cards)) as pool:
        list(pool.map(one, todo))
    return faults, left


def in_a_process(part: str, row: str, card: int) -> tuple[Values, dict[str, str]]:
    """Return what a row measures, and the machine's facts, by a process that sees one card."""
    command = [sys.executable, "-m", "figures", "row", part, row, "--card", str(card)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": str(card)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["values"], found["machine"]


def machine() -> dict[str, str]:
    """Return the card, its driver, and versions, as `Stamp` has them; of the CPU where there is no card."""
    import models
    from models.launches import CUDA
    from onnxfuse.profiling.bound import opened
    from onnxfuse.profiling.device import environment
    from onnxfuse.profiling.settings import DEFAULT
    from onnxfuse.runtime.cuda import device_count

    providers = CUDA if device_count() else ["CPUExecutionProvider"]
    told = environment(opened(models.build("mlp"), DEFAULT, providers, fused=False))
    torch = importlib.import_module("torch").__version__ if importlib.util.find_spec("torch") else ""
    return {
        "card": told["device"], "driver": told.get("driver", ""), "onnxruntime": told["onnxruntime"], "torch": torch,
    }  # fmt: skip
