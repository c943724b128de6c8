"""Try mutants of each kind for a while; exit 1 where one brought a traceback, hang, stray file, growth or crash.

    python -m tests.fuzz [--seconds 300] [--kind bytes] [--count 5000] [--seed 1] [--keep DIR]

A mutant is named KIND:SEED:NUMBER and is made again by `--only KIND:SEED:NUMBER`, which prints it to a file.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.kinds import KINDS
from tests.fuzz.worker import mutant

HANG = 30.0
"""Seconds that one mutant may take: the commands need a second for the seeds."""
BATCH = 200
"""Mutants of one process."""


class Patience:
    """The time for one kind: it runs from its first mutant on, so a slow machine tries some, too."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.start: float | None = None

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.seconds if self.start is None else self.start + self.seconds - time.monotonic()

    def begin(self) -> None:
        """Start the clock, once."""
        self.start = time.monotonic() if self.start is None else self.start


Failures = dict[str, list[str]]
"""Names of mutants by class."""


def main() -> int:
    """Run the kinds in turns until the time is up, print the table of classes, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=300, help="for all kinds together")
    parser.add_argument("--count", type=int, help="mutants of each kind, in place of --seconds")
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="write the mutants that failed there")
    parser.add_argument("--only", metavar="KIND:SEED:NUMBER", help="write this mutant to the file `mutant` and stop")
    asked = parser.parse_args()
    if asked.only:
        kind, seed, number = asked.only.split(":")
        Path("mutant").write_bytes(mutant(kind, int(seed), int(number)))
        return 0
    kinds = asked.kind or list(KINDS)
    failures: Failures = {}
    for kind in kinds:
        classes: Counter[str] = Counter()
        patience = Patience(10**9 if asked.count else asked.seconds / len(kinds))
        tried = 0
        while patience.left() > 0 and (asked.count is None or tried < asked.count):
            count = BATCH if asked.count is None else min(BATCH, asked.count - tried)
            tried += _batch(kind, asked.seed, tried, count, patience, classes, failures)
        print(f"{kind}: {tried} mutants: {', '.join(f'{n} {c}' for c, n in classes.most_common())}", flush=True)
    for found, names in sorted(failures.items(), key=lambda item: -len(item[1])):
        print(f"FAILED {len(names)}x {found}\n    {' '.join(names[:5])}")
        if asked.keep is not None:
            asked.keep.mkdir(parents=True, exist_ok=True)
            for name in names[:2]:
                kind, seed, number = name.split(":")
                (asked.keep / name.replace(":", "-")).write_bytes(mutant(kind, int(seed), int(number)))
    return 1 if failures else 0


def _batch(
    kind: str, seed: int, first: int, count: int, patience: Patience, classes: Counter[str], failures: Failures
) -> int:
    """Try mutants in a process of their own until it ends, one hangs, or the time is up; return how many were tried."""
    command = [sys.executable, "-m", "tests.fuzz.worker", kind, str(seed), str(first), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()) as child:
        assert child.stdout is not None
        lines, at, done = b"", -1, 0
        try:
            while True:
                ready, _, _ = select.select([child.stdout], [], [], HANG if at >= 0 else 4 * HANG)
                chunk = os.read(child.stdout.fileno(), 65536) if ready else b""
                if not chunk:
                    break
                *whole, lines = (lines + chunk).split(b"\n")
                for line in whole:
                    patience.begin()
                    fact = json.loads(line)
                    at = fact["number"]
                    if "class" in fact:
                        done += 1
                        at = -1
                        classes["failed" if fact["bad"] else fact["class"]] += 1
                        if fact["bad"]:
                            failures.setdefault(fact["class"].partition(" | ")[0], []).append(
                                f"{kind}:{seed}:{fact['number']}"
                            )
                if patience.left() < 0:
                    return done
            if at >= 0:
                hangs = child.poll() is None and not ready
                if not hangs:
                    child.wait()
                found = (
                    f"hang: more than {HANG:.0f} s" if hangs else f"crash: the process ended with {child.returncode}"
                )
                failures.setdefault(found, []).append(f"{kind}:{seed}:{at}")
                classes["failed"] += 1
                return done + 1
            if done == 0:
                child.kill()
                assert child.stderr is not None
                raise SystemExit(f"{kind}: the worker did not start: {child.stderr.read().decode()[-2000:]}")
            return done
        finally:
            child.kill()


def _environment() -> dict[str, str]:
    """Return an environment in which nothing but the mutant decides what is printed, on one thread."""
    return {**os.environ, "COLUMNS": "300", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


if __name__ == "__main__":
    sys.exit(main())
