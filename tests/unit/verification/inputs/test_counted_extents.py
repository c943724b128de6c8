"""Positions and parts that count along an axis."""

import numpy as np
import pytest

from onnxfuse.verification.inputs.counted_extents import IntegerRange
from onnxfuse.verification.inputs.input_roles import InputRole
from tests.unit.verification.inputs.test_counted_values import made

SHAPES = [(), (1,), (7,), (3, 4), (0,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_positions_are_within_the_axis(shape: tuple[int, ...]) -> None:
    """Both ends occur; at the edge they are half of all."""
    role = InputRole("within", (IntegerRange(-3, 9), IntegerRange(-5, 2)))
    found = np.concatenate([one.reshape(-1) for one in made(role, shape)])
    assert ((found >= -3) & (found <= 2)).all()
    edges = np.concatenate([one.reshape(-1) for one in made(role, (50,), edge=True)])
    assert {*edges.tolist()} == {-3, -2, -1, 0, 1, 2}
    assert 0.5 < np.isin(edges, (-3, 2)).mean() < 0.8


def test_real_positions_are_within_it_too() -> None:
    found = np.concatenate(made(InputRole("within", (IntegerRange(2, 5),), real=True), (40,)))
    assert ((found >= 2) & (found <= 5)).all()
    assert (found != np.rint(found)).any()


@pytest.mark.parametrize(("total", "count"), [(10, 3), (3, 3), (10, 1), (2, 5), (0, 2), (5, 0)])
def test_parts_add_up(total: int, count: int) -> None:
    """None is empty where there is one for each."""
    for one in made(InputRole("parts", (IntegerRange(0, total),)), (count,)):
        assert one.sum() == (total if count else 0)
        assert (one >= (1 if total >= count else 0)).all()


@pytest.mark.parametrize("real", [False, True])
def test_each_element_has_a_range_of_its_own(real: bool) -> None:
    """By the end of the axis: those that have none are 1, and of ranges that are too many the last count."""
    role = InputRole("each", (IntegerRange(2, 3), IntegerRange(10, 12)), real=real)
    for one in made(role, (4,)):
        assert one[:2].tolist() == [1, 1]
        assert 2 <= one[2] <= 3
        assert 10 <= one[3] <= 12
    assert all(10 <= one[0] <= 12 for one in made(role, (1,)))
    assert all(10 <= float(one) <= 12 for one in made(role, ()))
