"""What is told of two arrays is what NumPy says of them, in one piece and in many."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.verification.tolerance import metrics
from onnxfuse.verification.tolerance.error_budget import measure
from onnxfuse.verification.tolerance.metrics import Quantiles, difference, ulp_distances

RNG = np.random.default_rng(0)

A = RNG.standard_normal((37, 41)).astype(np.float32)

B = (A + RNG.standard_normal(A.shape) * 1e-3).astype(np.float32)


@pytest.fixture(params=[1 << 18, 100], ids=["one piece", "many pieces"])
def _pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CHUNK", request.param)


@pytest.mark.usefixtures("_pieces")
def test_the_numbers_are_those_of_numpy() -> None:
    """Sums, maxima and their places do not depend on the pieces; quantiles do by less than 1 %."""
    got = difference(B, A)
    d = np.abs(B.astype("d") - A)
    share = d / np.abs(A)
    assert (got.elements, got.finite) == (A.size, A.size)
    assert got.max_abs == d.max()
    assert d[got.max_abs_at] == d.max()
    assert share[got.max_rel_at] == pytest.approx(got.max_rel)
    assert got.mean_abs == pytest.approx(d.mean())
    assert got.mean_rel == pytest.approx(share.mean())
    wide = A.astype("d"), B.astype("d")
    assert got.snr == pytest.approx(10 * math.log10((wide[0] ** 2).sum() / (d**2).sum()))
    assert got.cosine == pytest.approx((wide[0] * wide[1]).sum() / np.linalg.norm(wide[0]) / np.linalg.norm(wide[1]))
    for q in (0.5, 0.9, 0.99):
        low, high = np.quantile(d, q, method="lower"), np.quantile(d, q, method="higher")
        assert 0.99 * low <= got.quantiles[str(q)] <= 1.01 * high
    assert sum(got.ulps.values()) == A.size


@pytest.mark.usefixtures("_pieces")
def test_the_budget_does_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure in pieces is that of the whole, the typical error to 1 %."""
    rng = np.random.default_rng(1)
    truth = A.astype("d") + rng.standard_normal(A.shape) * 1e-8
    got = measure(B, [A], truth)
    monkeypatch.setattr(metrics, "CHUNK", 1 << 18)
    whole = measure(B, [A], truth)
    assert (got.error, got.own, got.where, got.step) == (whole.error, whole.own, whole.where, whole.step)
    assert got.typical == pytest.approx(whole.typical, rel=0.01)
    assert got.fault
    assert not measure(A, [A], truth).fault


def test_equal_outputs_differ_by_nothing() -> None:
    """No place, no noise, all in the first bin of the histogram."""
    got = difference(A, A)
    assert (got.max_abs, got.max_abs_at, got.max_rel_at, got.snr, got.cosine) == (0, (), (), math.inf, 1.0)
    assert got.ulps == {"0": A.size}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_ulps_count_the_numbers_of_the_type(dtype: Any) -> None:
    """Neighbours are 1 apart, across powers of two and across zero, and both zeros are one number."""
    zero, one = dtype(0.0), dtype(1.0)
    up, down = np.nextafter(one, dtype(2)), np.nextafter(one, dtype(0))
    tiny = np.nextafter(zero, one)
    a = np.array([one, up, down, zero, -tiny, one], dtype)
    b = np.array([one, one, up, dtype(-0.0), tiny, one], dtype)
    np.testing.assert_array_equal(ulp_distances(a, b), [0, 1, 2, 0, 2, 0])
    assert difference(a, b).ulps == {"0": 3, "1": 1, "2": 2}
    far = ulp_distances(np.array([-1.0], dtype), np.array([1.0], dtype))[0]
    assert far == pytest.approx(2 * (np.array([1.0], dtype).view(f"i{a.itemsize}")[0]), rel=1e-6)


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    """NaN and infinity of either side are told; the other numbers are over what is finite in both."""
    f = np.array([1.0, np.nan, np.inf, 2.0], np.float32)
    o = np.array([1.0, np.nan, 3.0, 1.0], np.float32)
    got = difference(f, o)
    assert (got.nan, got.inf, got.finite, got.max_abs) == ((1, 1), (1, 0), 2, 1.0)
    assert got.max_abs_at == (3,)


def test_class_scores_tell_how_often_the_best_agree() -> None:
    """Of every row of the last axis, for each k that leaves a choice; a tie is no disagreement; unasked nothing."""
    rng = np.random.default_rng(0)
    scores = np.tile(np.arange(12, dtype=np.float32), (4, 1))
    other = scores.copy()
    other[0, 0] = 99  # another best
    other[1, [10, 11]] = other[1, [11, 10]]  # the same two best, in another order
    assert difference(other, scores, (1, 5)).agreement == {"1": 0.5, "5": 0.75}
    assert difference(other, scores).agreement == {}
    tied = scores.copy()
    tied[:, 10] = 11
    picked = tied.copy()
    picked[:, 10] = 12
    assert difference(picked, tied, (1,)).agreement["1"] == 1.0
    drawn = rng.standard_normal((20, 3000)).astype(np.float32)
    assert difference(2 * drawn, drawn, (1, 2, 5)).agreement == {"1": 1.0, "2": 1.0, "5": 1.0}
    assert difference(other[None], scores[None], (1, 2, 12, 50)).agreement == {"1": 0.5, "2": 0.75}


def test_quantiles_of_pieces() -> None:
    """Exact in one piece; to 1 % in several; nothing of nothing."""
    rng = np.random.default_rng(0)
    x = np.abs(rng.standard_normal(5000))
    one, many = Quantiles(), Quantiles()
    one.add(x)
    for part in np.split(x, 10):
        many.add(part)
    assert one.at(0.95) == np.percentile(x, 95)
    assert many.at(0.95) == pytest.approx(np.percentile(x, 95), rel=0.01)
    assert Quantiles().at(0.5) == 0
    nothing = Quantiles()
    for _ in range(2):
        nothing.add(np.zeros(5))
    assert nothing.at(0.5) == 0


def test_nan_may_be_asked_to_fail() -> None:
    """Where the original gives NaN too, it is right, unless `nan` says otherwise."""
    x = np.array([1.0, np.nan], np.float32)
    assert not measure(x, [x], x.astype("d")).fault
    got = measure(x, [x], x.astype("d"), nan="fail")
    assert got.where == (1,)
    assert "--nan fail" in got.fault


def test_distances_are_counted_by_powers_of_two() -> None:
    """Each edge is the first distance of its label."""
    edges = [1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 65, 256, 257, 1024, 1025, 65536, 65537]
    labels = ["1", "2", "3-4", "3-4", "5-8", "5-8", "9-16", "9-16", "17-64", "17-64", "65-256", "65-256", "257-1024",
              "257-1024", "1025-65536", "1025-65536"]  # fmt: skip
    one = np.ones(1, np.float32)
    for distance, label in zip(edges, [*labels, None], strict=True):
        other = (one.view(np.int32) + distance).view(np.float32)
        (found,) = (name for name, count in difference(other, one).ulps.items() if count)
        assert found == label or (label is None and found not in labels)
