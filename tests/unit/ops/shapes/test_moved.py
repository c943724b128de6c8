"""Shapes of moved data are NumPy's for integers, hold for all extents that are names, and are refused in words."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxfuse.ops.shapes import moved
from onnxfuse.ops.shapes.extents import UnknownError, is_known
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.integer import Int, smallest

N: Any = Int.name("n", least=1)
M: Any = Int.name("m", least=1)


def values(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of this shape."""
    return np.zeros(shape)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (moved.transposed((2, 3, 4), None), values((2, 3, 4)).T),
        (moved.transposed((2, 3, 4), (1, 2, 0)), values((2, 3, 4)).transpose(1, 2, 0)),
        (moved.reshaped((2, 3, 4), (6, -1), zero_copies=True), values((2, 3, 4)).reshape(6, -1)),
        (moved.reshaped((2, 3, 4), (0, 12), zero_copies=True), values((2, 12))),
        (moved.reshaped((0, 3), (0, 7), zero_copies=False), values((0, 3)).reshape(0, 7)),
        (moved.flattened((2, 3, 4), 1), values((2, 12))),
        (moved.flattened((2, 3, 4), -1), values((6, 4))),
        (moved.flattened((2, 3, 4), 3), values((24, 1))),
        (moved.flattened((2, 3, 4), 0), values((1, 24))),
        (moved.squeezed((1, 3, 1), None), values((1, 3, 1)).squeeze()),
        (moved.squeezed((1, 3, 1), (-1,)), values((1, 3, 1)).squeeze(-1)),
        (moved.unsqueezed((3,), (0, -1)), np.expand_dims(values((3,)), (0, -1))),
        (moved.gathered((2, 3, 4), (5, 6), 1), np.take(values((2, 3, 4)), np.zeros((5, 6), int), 1)),
        (moved.concatenated([(2, 3), (2, 4)], -1), np.concatenate([values((2, 3)), values((2, 4))], -1)),
        (moved.padded((2, 3), (0, 1), (2, 3), None), np.pad(values((2, 3)), ((0, 2), (1, 3)))),
        (moved.padded((2, 3), (1,), (3,), (1,)), np.pad(values((2, 3)), ((0, 0), (1, 3)))),
        (moved.repeated((2, 3), (4, 1), "Tile"), np.tile(values((2, 3)), (4, 1))),
        (moved.expanded((3, 1), (2, 1, 5)), np.broadcast_to(values((3, 1)), (2, 3, 5))),
        (moved.depth_to_space((2, 12, 3, 4), 2), values((2, 3, 6, 8))),
        (moved.space_to_depth((2, 3, 6, 8), 2), values((2, 12, 3, 4))),
    ],
)
def test_shapes_are_those_of_numpy(found: tuple[int, ...], expected: np.ndarray) -> None:
    """Of each move, by attributes of either sign."""
    assert found == expected.shape


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
def test_a_slice_is_one_of_python(step: int) -> None:
    """Bounds inside and beyond, of both signs: the first index and the length."""
    for start, end, extent in itertools.product((-9, -2, 0, 1, 4, 9), (-9, -3, 0, 2, 5, 9), (0, 1, 5)):
        picked = list(range(extent))[start:end:step]
        first, length = moved.sliced(start, end, step, extent)
        assert length == len(picked), (start, end, extent)
        assert not picked or first == picked[0]


def test_of_an_open_extent_a_slice_from_the_first_element_is_known() -> None:
    """The smaller of end and extent; all of it where the end is as exporters write infinity; else nothing."""
    assert moved.sliced(0, 4, 1, N)[1] == smallest(4, N)
    assert moved.sliced(0, moved.ALL, 1, N) == (0, N)
    assert moved.sliced(0, 2**63 - 1, 1, N)[1] is N
    for start, end, step in ((1, 4, 1), (0, -1, 1), (0, 4, 2)):
        assert not is_known(moved.sliced(start, end, step, N)[1])


@pytest.mark.parametrize(
    ("sizes", "parts", "extent", "expected"),
    [((), 2, 6, (3, 3)), ((), 3, 7, (3, 3, 1)), ((), 1, 5, (5,)), ((1, 4), 2, 5, (1, 4)), ((0, 5), 2, 5, (0, 5))],
)
def test_a_split_is_equal_but_for_its_last_part(
    sizes: tuple[int, ...], parts: int, extent: int, expected: tuple[int, ...]
) -> None:
    """Or has the sizes that are written."""
    assert moved.split(sizes, parts, extent) == expected


def test_extents_that_are_names_are_computed_with() -> None:
    """And what follows from no name is unknown, rather than wrong."""
    assert moved.reshaped((N, 4), (0, 2, -1), zero_copies=True) == (N, 2, 2)
    assert moved.reshaped((N, 4), (-1,), zero_copies=True) == (4 * N,)
    assert moved.flattened((N, 3, M), 1) == (N, 3 * M)
    assert moved.concatenated([(N, 3), (M, 3)], 0) == (N + M, 3)
    assert moved.padded((N, 2), (1, 0), (2, 0), None) == (N + 3, 2)
    assert moved.split((), 2, 2 * N) == (N, N)
    assert not is_known(moved.split((), 2, N)[0])
    assert not is_known(moved.reshaped((N, 3), (2, -1), zero_copies=True)[1])
    assert moved.squeezed((N, 1), (0,)) == (1,), "an open extent may be 1"
    assert moved.space_to_depth((1, 2, 2 * N, 4), 2) == (1, 8, N, 2)
    with pytest.raises(UnknownError):
        moved.squeezed((N, 1), None)


@pytest.mark.parametrize(
    ("move", "told"),
    [
        (lambda: moved.transposed((2, 3), (0, 0)), r"Transpose by \[0, 0\] of a value of rank 2"),
        (lambda: moved.reshaped((2, 3), (4, 2), zero_copies=True), r"Reshape of \(2, 3\) to \(4, 2\)"),
        (lambda: moved.reshaped((2, 3), (1, 6, 0), zero_copies=True), "Reshape of"),
        (lambda: moved.reshaped((0, 3), (0, -1), zero_copies=True), "Reshape of"),
        (lambda: moved.flattened((2, 3), 3), "Flatten at axis 3"),
        (lambda: moved.flattened((2, 3), -3), "Flatten at axis -1"),
        (lambda: moved.squeezed((2, 1), (0,)), r"Squeeze of axes \[0\]"),
        (lambda: moved.unsqueezed((2,), (0, 0)), "Unsqueeze along axes"),
        (lambda: moved.sliced(0, 1, 0, 4), "steps of 0"),
        (lambda: moved.split((2, 2), 2, 5), r"Split of 5 into \[2, 2\]"),
        (lambda: moved.split((2, 3), 3, 5), "Split of 5"),
        (lambda: moved.split((), 5, 3), "Split of 3"),
        (lambda: moved.split((6, -1), 2, 5), "Split of 5"),
        (lambda: moved.gathered((2,), (3,), 1), "axis 1 of a value of rank 1"),
        (lambda: moved.concatenated([(2, 3), (3, 3)], 1), "Concat of shapes"),
        (lambda: moved.concatenated([(2, 3), (2,)], 1), "Concat of shapes"),
        (lambda: moved.repeated((2,), (1, 1), "Tile"), "Tile of a value of rank 1, expected 2"),
        (lambda: moved.expanded((2, 3), (3, 3)), "Expand of"),
        (lambda: moved.depth_to_space((1, 6, 2, 2), 2), "DepthToSpace of"),
        (lambda: moved.depth_to_space((1, 4, 2), 2), "DepthToSpace of a value of rank 3"),
        (lambda: moved.space_to_depth((1, 4, 3, 2), 2), "SpaceToDepth of"),
        (lambda: moved.space_to_depth((1, 4, 2, 3), 2), "SpaceToDepth of"),
        (lambda: moved.space_to_depth((1, 4, 2, 2), 0), "SpaceToDepth of"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(move: Callable[[], object], told: str) -> None:
    """With the operator, the shape and what was asked of it."""
    with pytest.raises(UnsupportedError, match=told):
        move()
