"""The contract of lower precision: what an output may be away from the truth, and what breaks it whatever it is."""

import math

import numpy as np
import pytest

from onnxfuse.verification.tolerance.lower_precision import AGREEING, OWN_FACTOR, Judged, judge, relative_rms

TRUTH = np.array([[1.0, 2.0, 4.0]])
TINY = 2.0**-14


def judged(actual: object, original: object = TRUTH, truth: np.ndarray = TRUTH, *, scores: bool = False) -> Judged:
    """Return the verdict with a tolerance of 1 %."""
    return judge(np.asarray(actual), np.asarray(original), truth, 0.01, tiny=TINY, scores=scores)


def test_the_error_is_relative_to_the_truth_as_a_whole() -> None:
    """By their root mean squares: no element is judged by itself."""
    near, far = judged(TRUTH * 1.005), judged(TRUTH * 1.02)
    assert near.error == pytest.approx(0.005)
    assert (near.fault, far.fault) == ("", "relative RMS error 0.02, allowed 0.01")
    assert [near.severity, far.severity] == pytest.approx([0.5, 2])
    assert relative_rms(np.array([3.0, 0.0]), np.array([0.0, 4.0])) == pytest.approx((5 / 4, 0.0))


def test_what_the_original_is_off_itself_is_allowed_as_a_multiple() -> None:
    """Where that is more than the tolerance."""
    assert judged(TRUTH, TRUTH * 1.1).allowed == pytest.approx(OWN_FACTOR * 0.1)
    assert judged(TRUTH, TRUTH * 1.0001).allowed == 0.01


def test_what_is_not_finite_in_one_of_both_breaks_the_contract() -> None:
    """The same infinity in both does not; of classes nothing is said then."""
    broken = judged([[1.0, math.inf, 4.0]], scores=True)
    assert broken.fault == "1 of 3 elements is finite in only one of reference and output"
    assert (broken.severity, broken.agreement) == (math.inf, None)
    infinite = np.array([[1.0, math.inf, 4.0]])
    assert judged(infinite, infinite, infinite).fault == ""


def test_another_shape_breaks_it_unless_there_are_no_elements() -> None:
    """A scan of no steps has a shape that ONNX does not define."""
    assert judged([1.0, 2.0, 4.0]).fault == "its shape is [3], not [1, 3]"
    empty = np.zeros((0, 3))
    assert judged(empty, empty, np.zeros((0, 5))).fault == ""
    assert judged(empty, np.zeros((0, 4)), np.zeros((0, 5))).fault != ""
    assert judged(empty).fault != ""


def test_whole_numbers_differ_by_a_share_of_the_elements() -> None:
    """Twice as many as of the original, at least."""
    truth = np.arange(1000)
    off = np.where(truth < 100, -1, truth)
    assert judged(off, truth, truth).error == 0.1
    assert judged(off, truth, truth).fault
    assert not judged(off, off, truth).fault


def test_the_best_class_of_nearly_all_rows_is_the_truths() -> None:
    """Where the output is scores; within what is allowed, two classes are as good as each other."""
    truth = np.tile([0.0, 10.0], (1000, 1))
    swapped = truth.copy()
    swapped[: round(1000 * (1 - AGREEING)), ::] = [10.0, 0.0]
    assert judged(truth, truth, truth, scores=True).agreement == 1
    assert judged(swapped, truth, truth, scores=True).agreement == pytest.approx(AGREEING)
    assert judged(truth, truth, truth).agreement is None
    one_more = Judged(0.0, 0.01, 0.0, 1.0, 0.0, AGREEING - 0.001)
    assert one_more.fault.startswith("the best class of ")
    assert Judged(0.0, 0.01, 0.0, 1.0, 0.0, AGREEING).fault == ""
    tied = np.tile([9.99, 10.0], (4, 1))
    assert judged(tied[:, ::-1], tied, tied, scores=True).agreement == 1


@pytest.mark.parametrize(("truth", "cosine"), [(np.zeros(2), 1.0), (np.array([0.0, 3.0]), 0.0)])
def test_zeros_point_nowhere(truth: np.ndarray, cosine: float) -> None:
    """They are the truth where that is zeros, too."""
    assert relative_rms(np.zeros(2), truth)[1] == cosine


def test_a_severity_of_nothing_allowed() -> None:
    """Any error is a fault then, and none is none."""
    assert Judged(0.0, 0.0, 0.0, 1.0, 0.0, None).severity == 0
    assert Judged(0.1, 0.0, 0.0, 1.0, 0.0, None).severity == math.inf
    assert Judged(0.0, 0.5, 0.0, 0.2, 0.9, None).severity == 1.01
