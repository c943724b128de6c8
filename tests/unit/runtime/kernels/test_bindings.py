"""Sizes that an op's shapes tell, and those for which kernels are compiled before anyone asks."""

import pytest

from onnxfuse.runtime.kernels.bindings import around, bound
from onnxfuse.shapes.types import Dim
from onnxfuse.symbolic.parsing import parsed

NAMES = frozenset({"n", "h", "w"})


def dims(*texts: str | int) -> tuple[Dim, ...]:
    return tuple(parsed(t) if isinstance(t, str) else t for t in texts)


@pytest.mark.parametrize(
    ("extents", "shape", "sizes"),
    [
        (("n", 8, "h"), (2, 8, 640), {"n": 2, "h": 640}),
        (("n", "(h-1)//2+1"), (2, 320), {"n": 2, "h": 640}),
        (("((h-1)//2)//2+1", "w"), (160, 7), {"h": 640, "w": 7}),
        (("h//4", "(h-1)//2+1"), (25, 51), {"h": 102}),
        (("2*n", "3*h+1"), (8, 31), {"n": 4, "h": 10}),
        (("n*h", "n"), (12, 3), {"n": 3}),
        (("n", "n"), (2, 3), None),
        (("n", "n+1"), (2, 4), None),
        (("2*n",), (7,), None),
        (("n", 8), (2, 9), None),
        (("other", "n"), (5, 2), {"n": 2}),
        (("n", "h"), (0, 4), {"n": 0, "h": 4}),
    ],
)
def test_shapes_tell_sizes(
    extents: tuple[str | int, ...], shape: tuple[int, ...], sizes: dict[str, int] | None
) -> None:
    """Also through what a network rounds: the roundest of those that fit."""
    assert bound((dims(*extents), None), (shape, (1, 1)), NAMES) == sizes


def test_ranks_that_differ_tell_nothing() -> None:
    """An op stands in several places; a scalar of the CPU has its value as the shape."""
    assert bound((dims("n", 8),), ((2, 8, 1),), NAMES) is None
    assert bound((dims("n", 8), ()), ((2, 8), (512,)), NAMES) == {"n": 2}


def test_what_changes_is_guessed_below_between_and_above() -> None:
    found = [*around({"N": 1, "H": 640, "W": 320}, {"N": 1, "H": 960, "W": 1280})]
    assert {sizes["N"] for sizes in found} == {1}
    assert {sizes["H"] for sizes in found} == {128, 768, 1920}
    assert {sizes["W"] for sizes in found} == {64, 640, 2560}
    assert len(found) == 9
    assert all(sizes["H"] % 32 == 0 and sizes["W"] % 32 == 0 for sizes in found)


def test_many_dimensions_change_together() -> None:
    found = around(dict.fromkeys("abc", 10), dict.fromkeys("abc", 40))
    assert [tuple(sizes.values()) for sizes in found] == [(2, 2, 2), (20, 20, 20), (80, 80, 80)]


def test_no_size_is_0() -> None:
    assert {sizes["a"] for sizes in around({"a": 1}, {"a": 2})} == {1, 4}
