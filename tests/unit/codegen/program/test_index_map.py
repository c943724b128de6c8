"""Index maps: ranges, bounds, and what merging them keeps."""

from collections.abc import Sequence
from typing import Any

import pytest

from onnxfuse.codegen.program.index_map import Bound, Index, Space, linear, merged
from onnxfuse.symbolic.expressions import computed
from onnxfuse.symbolic.integer import Int
from onnxfuse.symbolic.operations import SHARED
from onnxfuse.symbolic.recording import DecisionNode, Recording, recorded


def test_ranges_and_bounds_of_divided_indices() -> None:
    """No index is negative where it is divided, whatever its own range is; a bound on a digit narrows the range."""
    space = Space()
    c = space.axis(10)
    quotient, remainder = space.divide(c * 3 + -4, 4)
    assert space.range(c * -3 + 4) == (-23, 4)
    assert (space.range(quotient), space.range(remainder)) == ((0, 5), (0, 3))
    assert space.range(quotient, (Bound(c, 4, 6), Bound(c, 0, 20))) == (2, 2)
    held = [space.holds(b) for b in (Bound(c, 0, 10), Bound(c, 10, 12), Bound(quotient, -1, 6), Bound(quotient, 1, 9))]
    assert held == [True, False, True, None]


def offset(extents: Sequence[Any]) -> Any:
    """Return the row-major offset of the coordinates c0, c1, ... as an `Int`."""
    total: Any = 0
    for axis, extent in enumerate(extents):
        total = total * extent + Int.name(f"c{axis}")
    return total


def test_an_index_says_what_no_int_can() -> None:
    """It has a term for each coordinate, whatever the extents are, and what is split comes together again."""
    two_terms = [Int.name(f"a{d}") + Int.name(f"b{d}") for d in range(6)]
    with pytest.raises(OverflowError):
        offset(two_terms)
    product: Any = computed("mul", sum((Int.name(f"c{d}") * (d + 2) for d in range(9)), start=0), Int.name("n"))
    assert SHARED in {a.op for monomial, _ in product.terms for a in monomial}

    made = Recording({}, DecisionNode(), [2] * 12)
    sums = tuple(made.dim(2 * d) + made.dim(2 * d + 1) for d in range(6))
    with recorded(made):
        space = Space()
        coordinates = tuple(space.axis(n) for n in sums)
        assert len(linear(coordinates, sums).terms) == 6
        assert space.divide(coordinates[0], sums[0]) == (Index(), coordinates[0])

    split, space = Int.name("k") * 5 + 7, Space()
    assert (split // 3) * 3 + split % 3 is not split
    index = space.axis(9) * 5 + 7
    quotient, remainder = space.divide(index, 3)
    assert quotient * 3 + remainder == index


def test_a_bound_stands_in_no_mergers_way() -> None:
    """0 <= c < 2 along the outer dimension is 0 <= 7 c + p < 14 along both."""
    space = Space()
    c, p = space.axis(5), space.axis(7)
    dimensions = merged(space, [linear((c, p), (5, 7))], [Bound(c, 0, 2)])
    assert dimensions.extents == (35,)
    assert dimensions.bound(Bound(c, 0, 2)) == Bound(Index.digit(0), 0, 14)
