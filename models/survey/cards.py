"""Who may do what on a card that the survey's workers share."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from onnxfuse.support.progress import Progress

LOCK = "ONNXFUSE_SURVEY_LOCK"
"""Environment: the beginning of the files that the workers of one card share, which say who may do what there."""

RACERS = 3
"""Races of one card that hold their sessions at once. Of fifteen workers' ten sessions each 80 GB are full: "CUDA
failure 2: out of memory", at whichever step it is."""

PATIENCE_FOR_THE_CARD = 60.0
"""Seconds that the others may take to come to the end of their step; after that it is timed beside them."""


@contextlib.contextmanager
def held(what: str, how: int = fcntl.LOCK_EX) -> Iterator[TextIO | None]:
    """Hold one of the card's files, None where there is no other worker."""
    path = os.environ.get(LOCK)
    if path is None:
        yield None
        return
    with Path(f"{path}.{what}").open("a") as file:
        fcntl.flock(file, how)
        yield file


@contextlib.contextmanager
def clock() -> Iterator[None]:
    """Be the only one of the card's workers that times. Runs of the others are short, and medians pass over them."""
    with held("clock"):
        yield


@contextlib.contextmanager
def in_company() -> Iterator[None]:
    """Use the card beside others, and not while one of them wants it for itself."""
    with contextlib.ExitStack() as stack:
        with held("gate"):  # who wants the card waits behind it
            stack.enter_context(held("card", fcntl.LOCK_SH))
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Have the card alone, once the others have come to the end of a step, or their time is over."""
    until = time.monotonic() + PATIENCE_FOR_THE_CARD
    with held("gate"), held("card", fcntl.LOCK_UN) as card:
        while card is not None and not _taken(card) and time.monotonic() < until:
            time.sleep(0.05)
        yield


@contextlib.contextmanager
def racing(tell: Progress) -> Iterator[None]:
    """Be one of the RACERS of the card."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(held(f"race_{n}", fcntl.LOCK_UN)) for n in range(RACERS)]
        while not any(file is None or _taken(file) for file in files):
            tell("waiting for its turn", 0, 0)
            time.sleep(1.0)
        yield


def _taken(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
