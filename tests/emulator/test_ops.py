"""The judge of kernels: what is out of the budget by the luck of a few elements passes, what is wrong does not."""

from typing import Any

import numpy as np
import pytest

from bench.cases import ops
from tests.support.kernels import fuzz, random_models

LUCKY = ("21 8652", "21 6445", "22 8748")
"""Random models whose few elements are nearer to the truth, unfused, than those beside them."""


@pytest.mark.parametrize("seed", LUCKY)
def test_a_lucky_unfused_output_is_no_measure(seed: str) -> None:
    """As far off as what is unfused at neighbouring inputs may be, which is more than these elements show."""
    op, inputs = _last(seed)
    (true,), (plain,) = ops.truth(op, inputs), ops.unfused(op, inputs)
    own = ops._greatest(plain, true)
    usual = max(ops._greatest(p, t) for (p,), (t,) in ops._beside(op, inputs))
    assert usual > own
    strict, fair = (ops._allowed(e, true, ops.FLOAT, 0) for e in (own, usual))
    got = (true + fair).astype(np.float32)
    got = np.where(got - true > fair, np.nextafter(got, np.float32(-np.inf)), got)
    assert (got - true > strict).any()
    ops.within_budget(op, inputs, [got])


@pytest.mark.parametrize("seed", LUCKY)
def test_wrong_last_bits_are_seen(seed: str) -> None:
    """Eight of them at the greatest element, or a rounding to bfloat16."""
    op, inputs = _last(seed)
    (true,) = ops.truth(op, inputs)
    wrong = true.astype(np.float32)
    at = np.unravel_index(np.abs(wrong).argmax(), wrong.shape)
    wrong[at] += 8 * np.spacing(wrong[at])
    for got in (wrong, true.astype(ops.NUMPY[ops.BRAIN]).astype(np.float32)):
        with pytest.raises(AssertionError, match="above the budget"):
            ops.within_budget(op, inputs, [got])


def _last(seed: int | str) -> tuple[Any, Any]:
    *_, (op, inputs) = fuzz.called(random_models.model(seed, kind=None))
    return op, inputs
