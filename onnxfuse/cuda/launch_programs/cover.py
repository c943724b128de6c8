"""A launch program for a range of shapes: recorded until each of them is answered, which evaluating them shows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.cuda.launch_programs.family import MOST_ANSWERS, Family, Key
from onnxfuse.cuda.launch_programs.tape import written
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.expressions import UnansweredError
from onnxfuse.symbolic.strides import Shape

Rows = npt.NDArray[np.int64]
Unanswered = Callable[[bytes, bytes, int], list[int]]
"""Of a tape and shapes, each so many words (ranks and extents), those that it does not answer, by their numbers."""

AT_ONCE = 8
"""Shapes that are recorded before all are evaluated again: evaluating one takes 0.5 us, recording one 10,000."""
MOST_REFUSED = 32
"""Shapes without a plan that are tried: a range that a kernel does not take has thousands of them."""


@dataclass(frozen=True)
class Domain:
    """Shapes of one family that a program is to answer for."""

    key: Key
    extents: Rows
    """A row for each: the extents of all inputs, one after the other."""
    whole: bool
    """Whether these are all that were asked for, or some of them."""


@dataclass(frozen=True)
class Covered:
    """A program, and how much of a domain it answers."""

    tape: bytes
    kernels: tuple[KernelSource, ...]
    shapes: int
    """Of the domain; each was evaluated."""
    left: int
    """Of these, those that the planner has to be asked for."""
    why: str
    """Why there are some, in one line."""


def cover(family: Family, domain: Domain, unanswered: Unanswered) -> Covered | None:
    """Return the program of `family` for a domain; None where no shape of it has a plan that can be recorded.

    Each recorded answer is compared with the planner's own: AssertionError where they differ, which is a defect.
    """
    rows = domain.extents
    left = np.arange(len(rows))
    chance, refused, why, tape = random.Random(0), 0, "", b""
    while len(left) and refused < MOST_REFUSED and family.answers < MOST_ANSWERS:
        gone = []
        for row in _picked(left, chance):
            try:
                shapes = _shapes(domain.key, rows[row])
                if family.answer(shapes) is None:
                    family.learn(shapes, family.plan(shapes))
            except (UnansweredError, UnsupportedError) as reason:
                gone.append(row)
                refused += 1
                why = why or str(reason) or "numbers beyond 64 bits"
        now = written(family) if family.answers else None
        if now is None:
            if family.answers:
                why = "more questions than a program holds"
            break
        tape = now
        left = left[_missed(tape, domain.key, rows[left], unanswered)]
        left = left[~np.isin(left, gone)]
    if not tape:
        return None
    missed = _missed(tape, domain.key, rows, unanswered)
    if len(missed) and not why:
        why = f"more than {MOST_ANSWERS} ways to launch it"
    return Covered(tape, tuple(family.kernels), len(rows), len(missed), why if len(missed) else "")


def _picked(left: npt.NDArray[np.int64], chance: random.Random) -> Iterator[int]:
    """Yield some of what is left: spread over all of it, its ends among them, and by chance."""
    ends = np.linspace(0, len(left) - 1, AT_ONCE // 2).astype(int)
    by_chance = [chance.randrange(len(left)) for _ in range(AT_ONCE // 2)]
    yield from (int(left[n]) for n in dict.fromkeys([*ends.tolist(), *by_chance]))


def _shapes(key: Key, row: npt.NDArray[np.int64]) -> tuple[Shape, ...]:
    extents = iter(row.tolist())
    return tuple(tuple(next(extents) for _ in range(rank)) for rank in key.ranks)


def _missed(tape: bytes, key: Key, rows: Rows, unanswered: Unanswered) -> npt.NDArray[np.int64]:
    columns, at = [], 0
    for rank in key.ranks:
        columns.append(np.full((len(rows), 1), rank, np.int64))
        columns.append(rows[:, at : at + rank])
        at += rank
    words = np.ascontiguousarray(np.concatenate(columns, 1)) if columns else np.empty((len(rows), 0), np.int64)
    return np.array(unanswered(tape, words.tobytes(), words.shape[1]), np.int64)
