"""The stopwatch: runs several things in turns, so that clock drift affects all equally, and times each run."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from onnxfuse.options.functions import ROUNDS, RUNS
from onnxfuse.support.units import Factor

WARM_UP = 10
"""Untimed runs first: ONNX Runtime captures CUDA graphs, and cuDNN searches algorithms, in the first of them."""
LEAST_WARM, WARM_SECONDS = 3, 1.0
"""Untimed runs of a slow model: after this many, and this time since the first of them, it is warm."""
LEAST_ROUNDS = 5
"""Rounds that are made whatever they take: the interval of the median is the range of these."""


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds that one run takes on the host; what runs on a device must wait for it."""
    start = perf_counter()
    run()
    return perf_counter() - start


def warm(runs: Iterable[Callable[[], object]], count: int = WARM_UP) -> None:
    """Run each so many times, untimed; slow ones less often."""
    for run in runs:
        run()  # what compiles and searches does that here
        start = perf_counter()
        for done in range(1, count):
            if done >= LEAST_WARM and perf_counter() - start > WARM_SECONDS:
                break
            run()


def rounds_within(limit: float, each: Sequence[float], rounds: int, runs: int) -> tuple[int, int]:
    """Return how many rounds of how many runs `interleaved` can make in `limit` seconds, at most `rounds` of `runs`.

    `each`: the seconds of one run of each contender. Runs of a round are given up first, then rounds, of which
    LEAST_ROUNDS are made in any case: each is one sample of the median.
    """
    turn = sum(each)
    if turn <= 0 or turn * rounds * (runs + 1) <= limit:
        return rounds, runs
    fit = int(limit / turn)
    least = min(rounds, LEAST_ROUNDS)
    fewer = max(min(rounds, fit // 2), least)
    return fewer, max(min(runs, fit // fewer - 1), 1)


def interleaved(
    runs: Sequence[Callable[[], object]],
    rounds: int = ROUNDS,
    count: int = RUNS,
    timer: Callable[[Callable[[], object]], float] = seconds,
    at: Callable[[int], None] = lambda round_index: None,
    on_round: Callable[[int], None] = lambda round_index: None,
) -> list[list[float]]:
    """Return the seconds of each run, `count` in each of `rounds` rounds: A A B B B B A A for two of two in two.

    Every second round is in reverse order: otherwise the same contender would always follow the one that heated up the
    GPU, or slowed it down for its power. `timer(run)` runs once and returns the seconds. `at(number)` is called before
    each round, `on_round(number)` before each contender in it, numbered from 0.
    """
    times: list[list[float]] = [[] for _ in runs]
    for round_index in range(rounds):
        at(round_index)
        order = list(enumerate(zip(runs, times, strict=True)))
        for index, (run, taken) in reversed(order) if round_index % 2 else order:
            on_round(index)
            run()  # An untimed run first: caches hold the data of the previous contender, whose threads may still spin.
            taken.extend(timer(run) for _ in range(count))
    return times


@dataclass(frozen=True)
class Timing:
    """Microseconds per run."""

    p50: float
    p90: float
    p99: float
    min: float
    low: float
    """With `high`: 95% confidence interval of the median."""
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float], rounds: int = 1) -> "Timing":
        """Return the percentiles, interpolated between the two nearest runs, and the interval of the median.

        `seconds` are those of `rounds` consecutive rounds of equally many runs.
        """
        samples = np.median(np.reshape(seconds, (rounds, -1)), axis=1) if rounds > 1 else seconds
        quantiles = (*np.percentile(seconds, (50, 90, 99, 0)), *interval([float(s) for s in samples]))
        return cls(*(float(p) * 1e6 for p in quantiles))

    def differs(self, other: "Timing") -> bool:
        """Return whether the intervals of the medians are disjoint: overlap may be chance."""
        return self.high < other.low or other.high < self.low

    def over(self, other: "Timing") -> Factor:
        """Return how many times as long as `other` this takes."""
        return Factor.of(self, other)


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return the 95% confidence interval of the median of the distribution of `samples`, whatever it is.

    By order statistics: it is below the k-th of n with the probability of fewer than k heads in n throws. Of fewer than
    six that is their whole range. With several rounds each is one sample: its runs share the current clock rate.
    """
    ordered = sorted(samples)
    n, k, below = len(ordered), 0, 0.5 ** len(ordered)
    while below <= 0.025:
        k += 1
        below += math.comb(n, k) * 0.5**n
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]


def timed(runs: Sequence[Callable[[], object]], rounds: int = ROUNDS, count: int = RUNS) -> list[Timing]:
    """Return the time of each run, in turns as `interleaved`; what has to be warm is warm."""
    return [Timing.of(one, rounds) for one in interleaved(runs, rounds, count)]
