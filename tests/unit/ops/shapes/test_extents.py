"""Arithmetic of shapes, of integers and of names: what may be equal, what broadcasts, and which axes there are."""

from typing import Any

import pytest

from onnxfuse.ops.shapes import extents
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.integer import Int, smallest

N: Any = Int.name("N", 1)
M: Any = Int.name("M", 1)
ANY = {"N": N, "M": M}


def test_unknown_extents_are_equal_to_nothing() -> None:
    """And everything that is computed from one is unknown."""
    one, other = extents.unknown(), extents.unknown()
    assert one is not other
    assert [extents.is_known(e) for e in (3, N, one, one + 1)] == [True, True, False, False]
    assert [extents.is_symbolic(*e) for e in ((3,), (3, N), (), (one,))] == [False, True, False, True]


def test_names_may_be_equal_unless_they_differ_by_a_number() -> None:
    """Integers are compared."""
    pairs = [
        (3, 3, True),
        (3, 4, False),
        (N, N, True),
        (N, M, True),
        (N, N + 1, False),
        (N + 1, 1, False),
        (N, 1, True),
    ]
    for a, b, equal in pairs:
        assert extents.may_equal(a, b) == equal, (a, b)
    assert [extents.may_be_multiple(*p) for p in ((6, 3), (7, 3))] == [True, False]
    assert extents.may_be_multiple(N, 3)


def test_quotients_come_out_or_are_unknown() -> None:
    """Of names."""
    assert extents.quotient(7, 2) == 3
    assert extents.quotient(N * 4, 2) == N * 2
    assert not extents.is_known(extents.quotient(N, 2))
    assert extents.smaller(3, 5) == 3
    assert extents.smaller(N, 5) == smallest(N, 5)


def test_axes_are_counted_from_either_end() -> None:
    """Each once, inside the rank."""
    assert [extents.axis_of(a, 3) for a in (0, 2, -1, -3)] == [0, 2, 2, 0]
    for axis in (3, -4):
        with pytest.raises(UnsupportedError, match=f"axis {axis} of a value of rank 3"):
            extents.axis_of(axis, 3)
    assert extents.different_axes((0, -1), 3, "a sum") == (0, 2)
    with pytest.raises(UnsupportedError, match=r"a sum along axes \[2, -1\] of a value of rank 3"):
        extents.different_axes((2, -1), 3, "a sum")
    extents.want_rank((1, 2), 2, "a sum")
    with pytest.raises(UnsupportedError, match="a sum of a value of rank 2, expected 3"):
        extents.want_rank((1, 2), 3, "a sum")


@pytest.mark.parametrize(
    ("shapes", "result"),
    [
        (((2, 3), (3,)), (2, 3)), (((1, 3), (2, 1)), (2, 3)), (((3,), (2, 3), ()), (2, 3)), (((0,), (1,)), (0,)),
        ((), ()), ((("N", 3), (1, 3)), ("N", 3)), (((1, 3), ("N", 3)), ("N", 3)), ((("N",), (4,)), (4,)),
        (((4,), ("N",)), (4,)), ((("N",), ("N",)), ("N",)),
    ],
)  # fmt: skip
def test_shapes_broadcast(shapes: tuple[tuple[int | str, ...], ...], result: tuple[int | str, ...]) -> None:
    """By NumPy's rule; a name and a number other than 1 give the number."""
    given = [tuple(ANY[e] if isinstance(e, str) else e for e in s) for s in shapes]
    expected = tuple(ANY[e] if isinstance(e, str) else e for e in result)
    assert extents.broadcast(given) == expected


def test_names_that_may_differ_broadcast_to_an_unknown_extent() -> None:
    """But a minimum with one of them to that."""
    (found,) = extents.broadcast([(N,), (M,)])
    assert not extents.is_known(found)
    least = smallest(N, M)
    for pair in ([(least,), (N,)], [(N,), (least,)]):
        shape: tuple[Any, ...] = extents.broadcast(pair)
        assert shape == (N,)


def test_what_does_not_broadcast_is_refused() -> None:
    """With the shapes, or with the caller's words."""
    with pytest.raises(UnsupportedError, match=r"shapes \(2, 3\), \(2,\) do not broadcast"):
        extents.broadcast([(2, 3), (2,)])
    with pytest.raises(UnsupportedError, match="no"):
        extents.broadcast([(3,), (2,)], lambda: "no")
