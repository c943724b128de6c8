"""The caller's own tolerances: which counts, and how it judges."""

import math

import numpy as np
import pytest

from onnxfuse.support.errors import UsageError
from onnxfuse.verification.tolerance import metrics
from onnxfuse.verification.tolerance.metrics import difference
from onnxfuse.verification.tolerance.user_tolerances import Tolerances, tolerated

RNG = np.random.default_rng(0)

A = RNG.standard_normal((37, 41)).astype(np.float32)

B = (A + RNG.standard_normal(A.shape) * 1e-3).astype(np.float32)


def test_tolerances_judge_as_assert_allclose_does() -> None:
    """|fused - original| <= atol + rtol |original|, NaN and infinities the same."""
    got = difference(B, A)
    assert tolerated(B, A, got.rtol, got.atol * 1.0001).fault == ""
    tight = tolerated(B, A, got.rtol, got.atol * 0.999)
    assert tight.beyond == 1
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(B, A, rtol=got.rtol, atol=got.atol * 0.999)
    assert tolerated(B, A, 0, 0).beyond == (B != A).sum()
    assert tolerated(B, A, 0, 0).worst == math.inf
    for f, o, fault in ((np.nan, np.nan, False), (np.inf, np.inf, False), (np.inf, 1.0, True), (np.nan, 1.0, True)):
        assert bool(tolerated(np.array([f], "f"), np.array([o], "f"), 1.0, 1.0).fault) is fault


def test_the_worst_element_is_named_by_its_place_in_the_whole_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whichever piece it is."""
    monkeypatch.setattr(metrics, "CHUNK", 10)
    far = A.copy()
    far[20, 3] += 1
    got = tolerated(far, A, 0.0, 0.5)
    assert (got.beyond, got.where) == (1, (20, 3))


def test_the_closest_tolerance_counts() -> None:
    """An output's own, then its type's, then the one for all; one that is not given counts as 0."""
    given = Tolerances({"": 1e-3, "float16": 1e-2}, {"y": 0.5})
    assert given.of("y", "float32") == (1e-3, 0.5)
    assert given.of("z", "float16") == (1e-2, 0.0)
    assert Tolerances({}, {"y": 1.0}).of("z", "float32") is None
    given.check(["y", "z"])
    with pytest.raises(UsageError, match=r"atol y=0\.5: no output or element type has that name"):
        given.check(["z"])
    Tolerances({"": 0.0}, {"": 0.0}).check([])
    for number in (-1.0, math.inf, math.nan):
        with pytest.raises(UsageError, match="a tolerance is a finite number from 0"):
            Tolerances({"": number}, {}).check([])
