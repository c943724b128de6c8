"""Interleaved timing: measure several things in turns, so that clock drift affects all equally."""

from collections.abc import Callable, Sequence
from time import perf_counter


def interleaved(
    runs: Sequence[Callable[[], None]],
    rounds: int,
    count: int,
    clock: Callable[[], float] = perf_counter,
    at: Callable[[int], None] = lambda round_index: None,
    on_round: Callable[[int], None] = lambda round_index: None,
) -> list[list[float]]:
    """Return the seconds of each run, `count` in each of `rounds` rounds: A A B B B B A A for two of two in two.

    Every second round is in reverse order: otherwise the same contender would always follow the one that heated up the
    GPU, or slowed it down for its power. `at(number)` is called before each round, `turn(number)` before each contender
    in it, numbered from 0.
    """
    times: list[list[float]] = [[] for _ in runs]
    for round_index in range(rounds):
        at(round_index)
        order = list(enumerate(zip(runs, times, strict=True)))
        for index, (run, seconds) in reversed(order) if round_index % 2 else order:
            on_round(index)
            run()  # An untimed run first: caches hold the data of the previous contender, whose threads may still spin.
            for _ in range(count):
                start = clock()
                run()
                seconds.append(clock() - start)
    return times
