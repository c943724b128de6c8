"""Measured times of variants, one problem a line of a file, so that no time is measured twice and none is lost."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from onnxfuse import cuda
from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.tables import Card


@dataclass(frozen=True)
class Time:
    """Microseconds of one variant on one problem, measured twice, so that who was first by chance shows."""

    launch: str
    """Digest of what was launched: equal for variants that launch the same."""
    first: float
    second: float

    @property
    def mean(self) -> float:
        """Microseconds by both measurements."""
        return (self.first + self.second) / 2


LIBRARY = "library"
"""Name among the variants of a problem: what NVIDIA's library takes for the part that it has a kernel for."""

Times = Mapping[str, Mapping[str, Time]]
"""Times by the problem's name and the variant's; a variant that did not run is absent."""


@dataclass(frozen=True)
class Record:
    """The times of a card."""

    arch: str
    card: Card
    times: Times
    failures: Mapping[str, str]
    """Why a problem has no times, by its name."""


def digest(plan: cuda.LaunchPlan) -> str:
    """Return what identifies everything that a plan launches."""
    launches = [(p.kernel.text, p.kernel.flags, *p.configuration[1:]) for p in (plan, *plan.then)]
    return hashlib.sha256(repr(launches).encode()).hexdigest()[:16]


class Log:
    """Appends measured times to a file, whose first line is the card."""

    def __init__(self, path: Path, arch: str, card: Card) -> None:
        """Start a file, or go on with one of the same GPU; raises ValueError if it is another's."""
        self.path = path
        if path.exists() and path.stat().st_size:
            known = read([path])
            if (known.arch, known.card.name) != (arch, card.name):
                raise ValueError(f"{path} has times of {known.card.name} ({known.arch}), this GPU is {card.name}")
            self.done = {*known.times, *known.failures}
            whole = path.read_bytes()
            path.write_bytes(whole[: whole.rfind(b"\n") + 1])
            return
        self.done = set[str]()
        self._append({"arch": arch, "card": asdict(card)})

    def times(self, problem: str, times: Mapping[str, Time]) -> None:
        """Append the times of a problem."""
        self.done.add(problem)
        self._append({"problem": problem, "times": {v: [t.launch, t.first, t.second] for v, t in times.items()}})

    def failure(self, problem: str, reason: str) -> None:
        """Append why a problem has no times."""
        self.done.add(problem)
        self._append({"problem": problem, "failure": reason})

    def _append(self, facts: Mapping[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts, default=str) + "\n")


def read(paths: Sequence[Path]) -> Record:
    """Return the times of several files of one GPU; raises ValueError if they are of several."""
    heads: dict[tuple[str, Card], tuple[str, Card]] = {}
    times: dict[str, Mapping[str, Time]] = {}
    failures: dict[str, str] = {}
    for facts in (facts for path in paths for facts in _lines(path)):
        if "card" in facts:
            measured = {**facts["card"], "date": date.fromisoformat(facts["card"]["date"])}
            card = replace(tables.card(facts["arch"]), **measured)
            heads.setdefault((facts["arch"], replace(card, bandwidth=0.0, date=None)), (facts["arch"], card))
        elif "failure" in facts:
            failures[facts["problem"]] = facts["failure"]
        else:
            times[facts["problem"]] = {variant: Time(*one) for variant, one in facts["times"].items()}
    if len(heads) != 1:
        raise ValueError(f"times of {len(heads)} GPUs, expected one")
    ((arch, card),) = heads.values()
    return Record(arch, card, times, failures)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the facts of a file; a last line that was cut off is none."""
    text = path.read_text(encoding="utf-8")
    for line in text[: text.rfind("\n") + 1].splitlines():
        yield json.loads(line)
