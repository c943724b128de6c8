"""Seeds whose processes die or stall, and what the runner says of all."""

import os
import signal
import time

import pytest

from tests.laws.every_operator import __main__ as runner
from tests.laws.every_operator import workers
from tests.laws.every_operator.workers import ABORTS, ENDS, EQUAL, REFUSED, STALLS, Outcome

DIES, DIES_OPTIMIZED, STALLED, BROKEN, UNSUPPORTED = 3, 5, 8, 9, 11
"""What the seeds of the stand-in are."""


def _stand_in(seed: int, original_only: bool) -> Outcome:
    if seed == DIES or (seed == DIES_OPTIMIZED and not original_only):
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == STALLED:
        time.sleep(60)
    if seed == BROKEN:
        return Outcome(seed, "not idempotent", "['Add'] -> []", 1)
    return Outcome(seed, REFUSED if seed == UNSUPPORTED else EQUAL, "", 1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_process_that_dies_or_stalls_takes_no_other_seed_with_it(jobs: int) -> None:
    """Every seed has one outcome; one whose original alone ends the process is ONNX Runtime's, another is a failure."""
    found = list(workers.outcomes(range(14), jobs, limit=1.0, work=_stand_in))
    assert sorted(one.seed for one in found) == list(range(14))
    kinds = {one.seed: one.kind for one in found if one.kind != EQUAL}
    assert kinds == {
        DIES: ABORTS,
        DIES_OPTIMIZED: ENDS,
        STALLED: STALLS,
        BROKEN: "not idempotent",
        UNSUPPORTED: REFUSED,
    }
    (died,) = (one for one in found if one.seed == DIES_OPTIMIZED)
    assert died.text == "it ends the process by SIGKILL; the original alone runs"


def _mistaken(seed: int, original_only: bool) -> Outcome:
    raise AssertionError(f"{seed} {original_only}")


def test_a_mistake_of_the_tests_is_not_taken_for_an_abort_of_onnx_runtime() -> None:
    """A worker that ends by an exception is a failure, also where the original alone is run."""
    assert [one.kind for one in workers.outcomes(range(1), 1, work=_mistaken)] == [ENDS]


def test_after_its_time_no_seed_is_begun() -> None:
    """The seeds that ended are the first ones: what is left can be run later."""
    assert list(workers.outcomes(range(100), 1, seconds=0.0, work=_stand_in)) == []


@pytest.mark.parametrize(
    ("kinds", "asked", "code"),
    [
        ([EQUAL, REFUSED, ABORTS, STALLS], 4, 0),
        ([EQUAL, "not idempotent"], 2, 1),
        ([EQUAL, ENDS], 2, 1),
        ([EQUAL, EQUAL], 5, 3),
        ([EQUAL, "optimized"], 5, 1),
    ],
)
def test_the_exit_code_is_0_only_where_every_seed_ended_and_held(
    kinds: list[str], asked: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary names the seeds that ended, and those of each kind that is no "equal"."""
    ended = [Outcome(seed, kind, "", 2) for seed, kind in enumerate(kinds)]
    monkeypatch.setattr(runner, "outcomes", lambda *asked: iter(ended))
    monkeypatch.setattr("sys.argv", ["", "--seeds", f"0:{asked}"])
    assert runner.main() == code
    said = capsys.readouterr().out
    assert f"ended: 0:{len(kinds)}\n" in said
    for seed, kind in enumerate(kinds):
        assert kind in (EQUAL, REFUSED) or f"\n{kind}: {seed}\n" in said


def test_seeds_are_told_as_ranges_that_can_be_asked_for() -> None:
    """Ends are excluded, as `--seeds` has them."""
    assert runner.ranges([4, 0, 1, 2, 9]) == "0:3 4:5 9:10"
