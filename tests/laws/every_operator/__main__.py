"""Try the laws on random graphs of every operator.

    python -m tests.laws.every_operator --seeds 0:50000 --jobs 16 --seconds 3600

A failure is printed with its seed, and tried again by `--seeds N:N+1 --show`, which prints the model, too.
Exit codes: 0 where all laws held, 1 where one is broken, 3 where none is but the time ended before the seeds.
"""

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable

from tests.laws.every_operator.workers import (
    ABORTS,
    EQUAL,
    HELD,
    LIMIT,
    REFUSED,
    REFUSED_MADE,
    STALLS,
    Outcome,
    outcomes,
)

SLOW = 10.0
"""Seconds from which on a graph is named: what takes so long is worth a look."""


def main() -> int:
    """Run the seeds, print what is broken as it is found, and what became of all."""
    parser = argparse.ArgumentParser(prog="python -m tests.laws.every_operator")
    parser.add_argument("--seeds", default="0:1000", metavar="FIRST:END")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="begin no other graph after that; those begun end")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds for one graph ({LIMIT:g})")
    parser.add_argument("--show", action="store_true", help="print the models")
    asked = parser.parse_args()
    first, end = (int(part) for part in asked.seeds.split(":"))
    if asked.show:
        _show(range(first, end))
    ended: list[Outcome] = []
    began = time.monotonic()
    try:
        for one in outcomes(range(first, end), asked.jobs, asked.seconds, asked.limit):
            ended.append(one)
            if one.kind not in HELD or one.kind in (ABORTS, STALLS, REFUSED_MADE) or one.seconds > SLOW:
                print(f"seed {one.seed}: {one.kind}: {one.text[:600]} ({one.seconds:.1f} s)", flush=True)
            if len(ended) % 1000 == 0:
                print(f"... {_counts(ended)}", flush=True)
    except KeyboardInterrupt:
        print("ended by a signal", flush=True)
    finally:
        print(summary(ended, end - first, time.monotonic() - began), flush=True)
    if any(one.kind not in HELD for one in ended):
        return 1
    return 0 if len(ended) == end - first else 3


def summary(ended: list[Outcome], asked: int, seconds: float) -> str:
    """Return what became of the seeds: counts, the rate, the seeds that ended, those of each failure."""
    worked = sum(one.seconds for one in ended)
    lines = [
        f"{len(ended)} graphs of {sum(one.nodes for one in ended)} nodes in {seconds:.0f} s"
        f" ({worked / max(len(ended), 1):.2f} s for each): {_counts(ended)}",
        f"ended: {ranges(one.seed for one in ended)}",
    ]
    if asked > len(ended):
        lines.append(f"not ended: {asked - len(ended)}")
    for kind in sorted({one.kind for one in ended} - {EQUAL, REFUSED}):
        lines.append(f"{kind}: {' '.join(str(one.seed) for one in ended if one.kind == kind)}")
    return "\n".join(lines)


def ranges(seeds: Iterable[int]) -> str:
    """Return numbers as ranges, their ends excluded, as `--seeds` takes them: "0:40 41:50"."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and runs[-1][1] == seed:
            runs[-1][1] += 1
        else:
            runs.append([seed, seed + 1])
    return " ".join(f"{first}:{end}" for first, end in runs)


def _counts(ended: list[Outcome]) -> str:
    kinds = Counter(one.kind for one in ended)
    broken = sum(n for kind, n in kinds.items() if kind not in HELD)
    return ", ".join(f"{kinds[kind]} {kind}" for kind in HELD) + f", {broken} broken"


def _show(seeds: range) -> None:
    import onnx

    from tests.laws.every_operator.laws import case

    for seed in seeds:
        one = case(seed)
        print(onnx.printer.to_text(one.model), {k: x.shape for k, x in one.feeds.items()}, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that workers end, and the summary is printed
    sys.exit(main())
