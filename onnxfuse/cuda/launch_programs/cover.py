"""Record a launch program for a range of shapes until evaluation shows that it covers each of them."""

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
from onnxfuse.symbolic.operations import UnansweredError
from onnxfuse.symbolic.strides import Shape

Rows = npt.NDArray[np.int64]
Unanswered = Callable[[bytes, bytes, int], list[int]]
"""Takes a tape and shapes in words (ranks and extents); returns the indices of the shapes that it does not cover."""

AT_ONCE = 8
"""Shapes recorded before all are evaluated again: evaluating one takes 0.5 us, recording one 10,000."""
MOST_REFUSED = 32
"""Number of shapes without a plan that are tried: an unsupported range has thousands of them."""


@dataclass(frozen=True)
class Domain:
    """Shapes of one family that a program is to cover."""

    key: Key
    extents: Rows
    """One row per shape: the extents of all inputs, concatenated."""
    whole: bool
    """Whether the rows are exhaustive, or a sample."""


@dataclass(frozen=True)
class Covered:
    """A program, and its coverage of a domain."""

    tape: bytes
    kernels: tuple[KernelSource, ...]
    shapes: int
    """Shapes of the domain; each was evaluated."""
    left: int
    """Number of those that the planner must handle."""
    why: str
    """Why there are some, in one line."""


def cover(family: Family, domain: Domain, unanswered: Unanswered) -> Covered | None:
    """Return the program of `family` for a domain; None if no shape of it has a plan that can be recorded.

    Each recorded answer is compared with the planner's own: AssertionError if they differ, which is a defect.
    """
    rows = domain.extents
    missing = np.arange(len(rows))
    chance, refused, why, tape = random.Random(0), 0, "", b""
    while len(missing) and refused < MOST_REFUSED and family.answers < MOST_ANSWERS:
        gone = []
        for row in _picked(missing, chance):
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
        missing = missing[_missed(tape, domain.key, rows[missing], unanswered)]
        missing = missing[~np.isin(missing, gone)]
    if not tape:
        return None
    missed = _missed(tape, domain.key, rows, unanswered)
    if len(missed) and not why:
        why = f"more than {MOST_ANSWERS} ways to launch it"
    return Covered(tape, tuple(family.kernels), len(rows), len(missed), why if len(missed) else "")


def _picked(missing: npt.NDArray[np.int64], chance: random.Random) -> Iterator[int]:
    """Yield a sample of the remaining shapes: evenly spaced, including the extremes, and random ones."""
    ends = np.linspace(0, len(missing) - 1, AT_ONCE // 2).astype(int)
    by_chance = [chance.randrange(len(missing)) for _ in range(AT_ONCE // 2)]
    yield from (int(missing[n]) for n in dict.fromkeys([*ends.tolist(), *by_chance]))


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
