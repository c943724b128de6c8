"""Time several things fairly: in turns, so that a clock that drifts hits all of them."""

from collections.abc import Callable, Sequence
from time import perf_counter


def interleaved(
    runs: Sequence[Callable[[], None]],
    rounds: int,
    count: int,
    clock: Callable[[], float] = perf_counter,
    at: Callable[[int], None] = lambda number: None,
    turn: Callable[[int], None] = lambda number: None,
) -> list[list[float]]:
    """Return the seconds of each run, `count` in each of `rounds` rounds: A A B B B B A A for two of two in two.

    Every second round goes backwards: a GPU that has heated up, or slowed down for its power, is left so to whatever
    comes next, which would always be the same one. `at(number)` is called before each round, `turn(number)` before each
    run's turn in it, numbered from 0.
    """
    times: list[list[float]] = [[] for _ in runs]
    for number in range(rounds):
        at(number)
        order = list(enumerate(zip(runs, times, strict=True)))
        for index, (run, seconds) in reversed(order) if number % 2 else order:
            turn(index)
            run()  # Not timed: caches hold the data of the one before, whose threads may still spin.
            for _ in range(count):
                start = clock()
                run()
                seconds.append(clock() - start)
    return times
