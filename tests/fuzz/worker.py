"""The child process: tries mutant after mutant, and says on its standard output what became of each.

    python -m tests.fuzz.worker KIND SEED FIRST COUNT

A line "N ..." before a mutant is tried, so that the parent knows which one took the process with it.
"""

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from onnxfuse.support import isolation
from tests.fuzz.commands import FaultError, empty
from tests.fuzz.kinds import KINDS

MEMORY = 3_000_000_000
"""Bytes of address space above what the process has when it starts: what asks for more fails as it would on a full
machine."""
GROWTH = 600_000_000
"""Bytes by which one mutant of a few kilobytes may raise the peak of the process."""


def mutant(kind: str, seed: int, number: int) -> bytes:
    """Return a mutant: the same arguments give the same bytes."""
    return KINDS[kind].make(Random(f"{kind}:{seed}:{number}"))


def main(kind: str, seed: int, first: int, count: int) -> None:
    """Try the mutants `first` to `first + count - 1`."""
    say = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    isolation.allow()  # as the command does: what ONNX Runtime breaks off at is told
    with tempfile.TemporaryDirectory() as folder:
        mutant(kind, seed, first)  # what is imported or prepared once is no growth
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        for number in range(first, first + count):
            data = mutant(kind, seed, number)
            say.write(json.dumps({"number": number}) + "\n")
            empty(Path(folder))
            peak, start = _peak(), time.perf_counter()
            try:
                found, bad = KINDS[kind].attempt(data, Path(folder)), False
            except FaultError as fault:
                found, bad = str(fault), True
            grown = _peak() - peak
            if grown > GROWTH and number > first:
                found, bad = f"growth: {grown / 1e6:.0f} MB ({found})", True
            seconds = time.perf_counter() - start
            say.write(json.dumps({"number": number, "class": found, "bad": bad, "seconds": seconds}) + "\n")
        os.chdir("/")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
