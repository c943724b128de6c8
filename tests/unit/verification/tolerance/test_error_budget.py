"""The rule: what is within the budget, what is not, and what cannot be judged."""

import math

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from onnxfuse.verification.tolerance import error_budget
from onnxfuse.verification.tolerance.error_budget import measure, rounding_step
from onnxfuse.verification.tolerance.output_error import Measure

INF, NAN = math.inf, math.nan


def test_error_may_be_twice_the_originals_plus_one_rounding_step() -> None:
    """The budget is 2 * own + one step of the output type at the true value."""
    step = 2.0**-23
    truth = np.array([1.5, 1.0])
    original = np.array([1.5, 1.0 + 2 * step], np.float32)
    allowed = np.array([1.5 + 5 * step, 1.0], np.float32)
    beyond = np.array([1.5 + 6 * step, 1.0], np.float32)
    assert _fault(allowed, original, truth) == ""
    assert _fault(beyond, original, truth) == f"error {6 * step:.3g}, allowed {5 * step:.3g}"
    assert measure(beyond, [original], truth).where == (0,)


@pytest.mark.parametrize(("truth", "fits"), [(65519.0, True), (65521.0, False)])
def test_the_truth_is_infinite_from_where_the_type_rounds_to_infinity(truth: float, fits: bool) -> None:
    """65504 is the largest number of float16, and 65520 is half way to the one that would follow."""
    largest, infinite = np.array([65504.0, 1.0], np.float16), np.array([INF, 1.0], np.float16)
    exact = np.array([truth, 1.0])
    assert (_fault(largest, infinite, exact) == "") == fits
    assert (_fault(infinite, largest, exact) == "") != fits


@pytest.mark.parametrize(("off", "beside"), [(0.25, False), (0.26, True), (0.5, True), (1.24, True), (1.25, False)])
def test_what_is_beside_the_truth_is_off_by_whole_steps(off: float, beside: bool) -> None:
    """From more than half a step on, as far as the most that it may be, in both directions."""
    grid = error_budget._Grid(step=0.5, most=2)
    truth = np.array([1.0, 2.0])
    for x in (truth + off, truth - off):
        assert grid.beside(x, truth).tolist() == [beside] * 2


def test_the_step_is_that_of_the_element() -> None:
    """One step at a small value does not grow with the largest value of the tensor."""
    truth = np.array([1024.0, 1.0])
    original = truth.astype(np.float32)
    fused = np.array([1024.0, 1 + 2**-20], np.float32)
    assert measure(fused, [original], truth).where == (1,)
    assert _fault(fused, original, truth)


@pytest.mark.parametrize(
    ("dtype", "value", "step"),
    [
        (np.float16, 1.0, 2.0**-10),
        (np.float16, 1.9, 2.0**-10),
        (np.float16, 2.0, 2.0**-9),
        (np.float16, 0.0, 2.0**-24),
        (np.float16, -3e-8, 2.0**-24),
        (ml_dtypes.bfloat16, 1.0, 2.0**-7),
        (np.float32, -1.0, 2.0**-23),
        (np.float32, 0.0, 2.0**-149),
        (np.float64, 1.0, 2.0**-52),
    ],
)
def test_rounding_step(dtype: type, value: float, step: float) -> None:
    """The step is the distance to the next number of the type, denormals included."""
    assert rounding_step(np.array([value]), np.dtype(dtype))[0] == step


def test_a_neighbor_counts_by_its_own_scale_and_one_of_zeros_does_not() -> None:
    """Errors are shares of the largest value: below 1 as above it, and of nothing there is none."""
    alone = measure(np.ones(2, np.float32), [np.ones(2, np.float32)], np.ones(2))
    zeros = measure(np.zeros(2, np.float32), [np.zeros(2, np.float32)], np.zeros(2))
    assert zeros.compared
    assert error_budget.with_worst_error(alone, [zeros]).own == alone.own
    small = np.full(2, 2.0**-7)
    near = measure(small.astype("f"), [(small * (1 + 2**-14)).astype("f")], small)
    assert error_budget.with_worst_error(alone, [zeros, near]).own == pytest.approx(2.0**-14)


def test_a_small_error_everywhere_is_found_below_a_large_value() -> None:
    """What hides below the rounding of one large element shows in the typical error."""
    truth = np.full(200, 1e-3)
    truth[0] = 2000.7
    original = truth.astype(np.float16)
    fused = original.copy()
    fused[1:] += np.float16(1e-4)
    got = measure(fused, [original], truth)
    assert got.error <= got.budget
    assert "typical error" in got.fault
    assert not measure(original, [original], truth).fault


def test_the_original_is_judged_by_its_worst_run() -> None:
    """Runs on nudged inputs and near by tell the original's own error where one run is lucky."""
    truth = np.array([1.0])
    lucky, unlucky = np.array([1.0], np.float32), np.array([1.0 + 2**-20], np.float32)
    fused = np.array([1.0 - 2**-20], np.float32)
    assert _fault(fused, lucky, truth)
    assert not measure(fused, [lucky, unlucky], truth).fault
    other = measure(np.array([100.0], np.float32), [np.array([100.0 + 2**-13], np.float32)], np.array([100.0]))
    alone = measure(fused, [lucky], truth)
    widened = error_budget.with_worst_error(alone, [other])
    assert alone.fault
    assert not widened.fault
    assert widened.own == pytest.approx(2**-13 / 100)


@pytest.mark.parametrize(
    ("fused", "original", "truth", "holds"),
    [
        (NAN, 1.0, 1.0, False),
        (INF, 1.0, 1.0, False),
        (NAN, NAN, NAN, True),
        (1.0, NAN, NAN, False),
        (INF, NAN, NAN, False),
        (INF, INF, INF, True),
        (-INF, INF, INF, False),
        (NAN, INF, 1.0, False),
        (INF, INF, 1.0, True),  # The original overflows inside: the same is no fault,
        (1.0, INF, 1.0, True),  # and neither is the truth,
        (1.5, INF, 1.0, False),  # but a number has to be right.
        (NAN, NAN, 1.0, True),
        (INF, 65504.0, 1e6, True),  # Truth is beyond float16.
        (65504.0, INF, 1e6, False),
    ],
)
def test_what_is_not_finite(fused: float, original: float, truth: float, holds: bool) -> None:
    """Where truth and original are finite the fused value is; elsewhere it follows the original or the truth."""
    values = [np.array([1.0, v], np.float16) for v in (fused, original)]
    got = measure(values[0], [values[1]], np.array([1.0, truth]))
    assert (got.fault == "") is holds, got.fault
    if not holds:
        assert got.where == (1,)


def test_an_original_that_is_finite_nowhere_judges_nothing() -> None:
    """It has no own error, which is not one of zero; a run of it that has one judges, as does one finite element."""
    truth = np.array([100.0, 3.0])
    fused, lost = np.array([101.0, 3.0], np.float16), np.array([NAN, INF], np.float16)
    got = measure(fused, [lost], truth)
    assert (got.fault, got.undecided, got.compared) == ("", True, 0)
    assert (got.where, got.fused, got.truth) == ((0,), 101.0, 100.0)
    assert math.isnan(got.original)
    assert measure(fused, [lost, truth.astype(np.float16)], truth).fault == "error 1, allowed 0.0625"
    assert measure(fused, [np.array([NAN, 3.0], np.float16)], truth).fault == "error 1, allowed 0.0625"
    assert measure(np.array([NAN, 3.0], np.float16), [lost], truth).fault == ""
    assert measure(np.array([INF, 3.0], np.float16), [lost], truth).fault.startswith("inf where")


def test_a_float32_denormal_may_be_flushed_and_a_float16_one_may_not() -> None:
    """GPUs flush the first, never the second."""
    tiny = np.array([1e-39])
    assert not _fault(np.zeros(1, np.float32), tiny.astype(np.float32), tiny)
    small = np.array([1e-6])
    assert _fault(np.zeros(1, np.float16), small.astype(np.float16), small)


def test_whole_numbers_differ_only_where_the_original_does() -> None:
    """A tie, shown by the truth or by a nudged run, is free; anything else is not."""
    truth, original = np.array([3, 4, 5]), np.array([3, 4, 6])
    nudged = np.array([3, 9, 6])
    assert not measure(np.array([3, 0, 0]), [original, nudged], truth).fault
    got = measure(np.array([0, 4, 6]), [original, nudged], truth)
    assert got.fault == "1 of 3 whole values differs"
    assert (got.where, got.fused, got.original) == ((0,), 0.0, 3.0)
    assert got.compared == 1
    assert measure(np.array([True]), [np.array([False])], np.array([False])).fault


def test_as_many_whole_numbers_may_differ_as_one_run_of_the_original_has_for_itself() -> None:
    """Codes of a quantizer: each run crosses thresholds that the others do not, and the fused model does."""
    truth = np.zeros(1000, np.int64)

    def at(*places: int) -> npt.NDArray[np.int64]:
        moved = truth.copy()
        moved[[*places]] = 1
        return moved

    runs = [truth, *(at(n) for n in range(8))]
    assert not measure(at(500, 501), runs, truth).fault
    assert measure(at(500, 501, 502), runs, truth).fault == "3 of 1000 whole values differ"
    assert measure(at(500), [truth] * 9, truth).fault == "1 of 1000 whole values differs"
    few = [x[:90] for x in runs]
    assert measure(at(50)[:90], few, truth[:90]).fault == "1 of 90 whole values differs"


def test_another_shape_or_type_is_broken() -> None:
    """Values are not looked at where the shapes differ."""
    x = np.zeros((2, 3), np.float32)
    assert measure(x[:1], [x], x).fault == "is float32[1, 3], the original gives float32[2, 3]"
    assert measure(x.astype(np.float16), [x], x).fault == "is float16[2, 3], the original gives float32[2, 3]"


def test_nothing_to_compare_is_no_fault() -> None:
    """An output without elements is right."""
    x = np.zeros((0, 3), np.float32)
    assert measure(x, [x], x).fault == ""


def test_a_blunt_original_is_told() -> None:
    """An original that is far from the truth itself proves nothing."""
    truth = np.array([1.0, 2.0])
    far = measure(truth.astype("f"), [np.array([1.5, 2.0], np.float32)], truth)
    assert (far.too_far, far.blunt, far.undecided) == (True, True, True)
    percents = measure(truth.astype("f"), [np.array([1.05, 2.0], np.float32)], truth)
    assert (percents.too_far, percents.blunt, percents.undecided) == (False, True, False)
    assert not measure(truth.astype("f"), [truth.astype("f")], truth).blunt
    same = np.array([1.05, 2.0], np.float32)
    assert not measure(same.copy(), [same], truth).blunt


def test_what_is_blunt_widens_no_budget() -> None:
    """The original's own error near by counts only where it is no blunt one."""
    truth = np.array([1.0, 2.0])
    lucky = measure(np.array([1.01, 2.0], np.float32), [truth.astype("f")], truth)
    blunt = measure(truth.astype("f"), [np.array([1.05, 2.0], np.float32)], truth)
    assert lucky.fault
    assert error_budget.with_worst_error(lucky, [blunt]).fault
    assert not error_budget.with_worst_error(
        lucky, [measure(truth.astype("f"), [np.array([1.015, 2.0], np.float32)], truth)]
    ).fault


def test_what_is_the_same_in_every_element_needs_no_judge() -> None:
    """However far the original is from the truth: the fused output is that very output."""
    truth, original = np.array([1.0, 2.0]), np.array([1.5, NAN], np.float32)
    assert not measure(original.copy(), [original], truth).undecided
    assert measure(np.array([1.5, 2.0], np.float32), [np.array([1.5, 2.5], np.float32)], truth).undecided
    whole = np.array([7, 8], np.int8)
    assert not measure(whole.copy(), [whole], np.array([1, 2])).undecided
    assert measure(np.array([7, 9], np.int8), [whole], np.array([1, 2])).undecided
    right = np.array([1.0, 2.0], np.float32)
    assert measure(right, [np.array([1.0, 2.001], np.float32)], truth, unsure=True).undecided
    assert not measure(right, [right], truth, unsure=True).undecided
    nothing = np.array([NAN, NAN], np.float32)
    assert measure(nothing, [nothing], np.array([NAN, NAN])).undecided


def test_how_many_there_are_may_hang_on_a_rounding() -> None:
    """Boxes above a threshold: a truth with another number of them judges nothing, and is no fault."""
    original, truth = np.array([1.0, 2.0], np.float32), np.array([1.0, 2.0, 3.0])
    got = measure(np.array([1.0, 2.5], np.float32), [original], truth)
    assert (got.fault, got.undecided) == ("", True)
    assert not measure(original.copy(), [original], truth).undecided


@pytest.mark.parametrize(
    ("original", "truth", "far"),
    [
        (np.array([1.0, 1.0005], np.float32), np.array([1.0, 1.0]), False),
        (np.array([1.0, 1.002], np.float32), np.array([1.0, 1.0]), True),
        (np.array([1.0, 1.002], np.float16), np.array([1.0, 1.0]), False),
        (np.array([1.0, np.inf], np.float32), np.array([1.0, 1.0]), False),
        (np.array([1, 2]), np.array([1, 3]), True),
        (np.array([1, 2]), np.array([1, 2]), False),
        (np.array([1.0], np.float32), np.array([1.0, 1.0]), True),
    ],
)
def test_an_original_far_from_the_truth_is_told(original: np.ndarray, truth: np.ndarray, far: bool) -> None:
    """Further than it rounds: the operators of the truth are looked at again."""
    assert error_budget.exceeds_rounding(original, truth) is far


def test_differences_are_those_that_a_user_sees() -> None:
    """max abs, max rel and cosine compare fused with original; the tolerances make assert_allclose pass, just."""
    rng = np.random.default_rng(0)
    original = rng.standard_normal(500).astype(np.float32)
    fused = (original + rng.standard_normal(500) * 1e-4).astype(np.float32)
    got = measure(fused, [original], original.astype(np.float64)).difference
    difference = np.abs(fused.astype(np.float64) - original)
    assert got.max_abs == difference.max()
    assert got.max_rel == pytest.approx((difference / np.abs(original)).max())
    assert got.cosine == pytest.approx(np.dot(fused, original) / np.linalg.norm(fused) / np.linalg.norm(original))
    np.testing.assert_allclose(fused.astype("d"), original.astype("d"), rtol=got.rtol, atol=got.atol * (1 + 1e-9))
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(fused.astype("d"), original.astype("d"), rtol=got.rtol, atol=got.atol * 0.999)


def test_cosine_does_not_overflow() -> None:
    """Values whose squares leave the type have an angle like any other."""
    x = np.array([1e300, 1e300])
    assert measure(x, [x], x).difference.cosine == pytest.approx(1.0)


def _fault(fused: np.ndarray, original: np.ndarray, truth: np.ndarray) -> str:
    got: Measure = measure(fused, [original], truth)
    return got.fault
