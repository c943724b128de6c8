"""Percentiles, intervals of medians, and the order of runs."""

import itertools
from collections.abc import Callable

import pytest

from onnxfuse.measure.timing import stopwatch
from onnxfuse.measure.timing.stopwatch import Timing, interleaved, interval, rounds_within, warm


def test_percentiles_are_interpolated_and_in_microseconds() -> None:
    """Of 1 to 101 ms, the percentile p is 1 + p ms; the order of the runs does not matter."""
    timing = Timing.of([n / 1e3 for n in range(101, 0, -1)])
    assert (timing.p50, timing.p90, timing.p99, timing.min) == pytest.approx((51e3, 91e3, 100e3, 1e3))
    assert Timing.of([1e-3, 2e-3]).p50 == pytest.approx(1500)


def test_the_interval_of_a_median() -> None:
    """Of ten samples the second and the ninth (97.9%); of few the whole range; a round is one sample."""
    assert interval([float(n) for n in range(10)]) == (1.0, 8.0)
    assert interval([float(n) for n in range(6)]) == (0.0, 5.0)
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval([float(n) for n in range(100)]) == (39.0, 60.0)
    rounds = Timing.of([1e-6, 1e-6, 9e-6, 2e-6, 2e-6, 2e-6], rounds=2)
    assert (rounds.low, rounds.high) == pytest.approx((1, 2))


def test_runs_take_turns_and_the_first_of_a_turn_is_not_timed() -> None:
    """Two rounds of two, there and back: a (a a) b (b b) b (b b) a (a a), the timer around the timed ones only."""
    log: list[str] = []
    ticks = itertools.count()

    def timer(run: Callable[[], object]) -> float:
        log.append("|")
        run()
        return float(next(ticks))

    times = interleaved([lambda: log.append("a"), lambda: log.append("b")], rounds=2, count=2, timer=timer)
    assert "".join(log) == "a|a|a" + "b|b|b" + "b|b|b" + "a|a|a"
    assert times == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_slow_models_are_run_less_often_within_the_limit() -> None:
    """Runs of a round are given up first, then rounds down to five; an untimed run of each contender leads a round."""
    fast, slow = [0.001, 0.002], [0.4, 0.1]
    assert rounds_within(60, fast, 10, 20) == (10, 20)
    assert rounds_within(60, slow, 10, 20) == (10, 11)
    rounds, runs = rounds_within(60, [4.0, 1.0], 10, 20)
    assert (rounds, runs) == (6, 1)
    assert rounds_within(60, [40.0], 10, 20) == (5, 1)
    assert rounds_within(60, [40.0], 2, 1) == (2, 1)
    assert rounds_within(60, [0.0], 10, 20) == (10, 20)


def test_a_slow_model_is_warm_after_three_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one compiles, and its time does not count."""
    clock, log = [0.0], list[str]()

    def run(seconds: float) -> Callable[[], None]:
        def once() -> None:
            clock[0] += 100.0 if not log else seconds
            log.append("run")

        return once

    monkeypatch.setattr(stopwatch, "perf_counter", lambda: clock[0])
    for seconds, count in ((0.01, 10), (5.0, 3), (0.3, 5)):
        log.clear()
        warm([run(seconds)])
        assert len(log) == count
