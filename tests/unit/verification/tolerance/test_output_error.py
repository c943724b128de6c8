"""What is said of an output from its measures: at each bound it is still right, and beyond it is not."""

import math
from dataclasses import replace

import pytest

from onnxfuse.verification.tolerance.metrics import Difference
from onnxfuse.verification.tolerance.output_error import BLUNT, BLUNT_STEPS, FACTOR, NOTHING, TOO_FAR, Measure

SOUND = Measure(8, 8, Difference(), 2.0, 2**-20, 0.5, 2**-20, 2**-21, 1.0, (0,), 1.0, 1.0, 1.0, eps=2**-23)


def test_the_budget_is_twice_the_originals_error_and_a_step() -> None:
    """Of the largest error and of the typical one; the share that is used is 1 at the bound."""
    budget = FACTOR * SOUND.own + SOUND.step
    assert (SOUND.budget, SOUND.typical_budget, SOUND.fault) == (budget, 2.0, "")
    full, over = replace(SOUND, error=budget, typical=0.0), replace(SOUND, error=budget * 1.5, typical=0.0)
    assert (full.fault, full.severity) == ("", 1.0)
    assert over.fault == "error 3.58e-06, allowed 2.38e-06"
    assert over.severity == pytest.approx(1.5)
    assert replace(SOUND, typical=2.0).fault == ""
    typical = replace(SOUND, typical=3.0)
    assert typical.fault == "typical error 3 rounding steps, allowed 2"
    assert typical.severity == pytest.approx(1.5)
    assert math.isinf(replace(SOUND, broken="NaN").severity)


def test_without_a_budget_any_error_is_one() -> None:
    """Integers, and an original that is exact: nothing may be off."""
    exact = replace(SOUND, own=0.0, step=0.0, typical=0.0)
    assert (replace(exact, error=0.0).severity, replace(exact, error=0.0).fault) == (0.0, "")
    assert replace(exact, error=1e-30).severity == 1.0
    assert replace(exact, error=1e-30).fault


def test_an_original_that_is_far_off_judges_nobody() -> None:
    """Beyond a tenth of the largest value its typical error is no measure; equal outputs are right all the same."""
    bound = TOO_FAR * SOUND.scale
    assert not replace(SOUND, own=bound).too_far
    far = replace(SOUND, own=bound * 1.01, typical=9.0)
    assert far.too_far
    assert far.undecided
    assert far.fault == ""
    assert far.severity < 1
    assert not replace(far, identical=True).undecided
    assert not replace(far, step=far.own).too_far  # it rounds no finer


def test_a_wrong_weight_hides_in_a_large_error_of_the_original() -> None:
    """Of a hundredth of the largest value, and of four roundings of it."""
    coarse = replace(SOUND, eps=2**-8)  # four roundings are more than a hundredth
    for measure, bound in ((SOUND, BLUNT * SOUND.scale), (coarse, BLUNT_STEPS * coarse.eps * coarse.scale)):
        at, beyond = replace(measure, own=bound), replace(measure, own=bound * 1.01)
        assert (at.hides_faults, at.blunt, at.telling) == (False, False, True)
        assert (beyond.hides_faults, beyond.blunt, beyond.telling) == (True, True, False)
        assert not replace(beyond, eps=0.0).hides_faults  # integers have no error of their own
        assert not replace(beyond, step=beyond.own).hides_faults
        assert not replace(beyond, identical=True).blunt
        assert replace(at, compared=1).telling  # a single element says so
        assert replace(beyond, compared=1).blunt


def test_nothing_says_nothing() -> None:
    assert (NOTHING.empty, NOTHING.undecided, NOTHING.telling, NOTHING.fault) == (True, True, False, "")
    assert not replace(NOTHING, identical=True).empty
    assert not replace(SOUND, scale=0.0, own=0.0).telling
    assert replace(SOUND, scale=0.5, own=0.0).telling
    assert not SOUND.undecided  # nothing said that it is unsure
    assert replace(SOUND, scale=0.0, eps=0.0).telling
