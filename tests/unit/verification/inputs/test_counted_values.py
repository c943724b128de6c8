"""Values of inputs that count, point or measure: each within what its role allows, at any shape."""

import numpy as np
import pytest

from onnxfuse.verification.inputs.counted_values import counted_values
from onnxfuse.verification.inputs.input_roles import InputRole

SHAPES = [(), (1,), (7,), (3, 4), (0,)]


def made(role: InputRole, shape: tuple[int, ...], *, edge: bool = False) -> list[np.ndarray]:
    """Return the values by some seeds; each has the shape."""
    found = [counted_values(np.random.default_rng(seed), role, shape, {}, edge=edge) for seed in range(20)]
    assert {one.shape for one in found} == {shape}
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_axes_differ_as_long_as_there_are_enough(shape: tuple[int, ...]) -> None:
    """More than there are begin again."""
    for one in made(InputRole("axes", choices=(0, 1, 2, 3)), shape):
        values = one.reshape(-1).tolist()
        assert {*values} <= {0, 1, 2, 3}
        assert len({*values[:4]}) == min(4, len(values))
        assert values[4:] == values[: max(0, len(values) - 4)][: len(values[4:])]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_target_fits_any_number_of_elements(shape: tuple[int, ...]) -> None:
    """One axis takes them all, and the others are 1; not always the same one."""
    found = made(InputRole("target"), shape)
    for one in found:
        assert sorted(one.reshape(-1).tolist()) == [-1, *[1] * (one.size - 1)][: one.size]
    assert (len({tuple(one.reshape(-1)) for one in found}) > 1) == (found[0].size > 1)


def test_what_is_fitted_is_computed() -> None:
    """From the sizes and the shape."""
    role = InputRole("fitted", fitted=lambda sizes, shape: tuple(sizes["n"] + k for k in range(shape[0])))
    found = counted_values(np.random.default_rng(0), role, (3,), {"n": 5})
    assert found.tolist() == [5, 6, 7]
