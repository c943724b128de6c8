"""Strides: which dimensions collapse, and how wide an access may be."""

import random

import pytest

from onnxfuse.symbolic import strides as layout


@pytest.mark.parametrize(
    ("full", "shapes", "extents", "strides"),
    [
        ((4, 5, 6), [(4, 5, 6), (6,)], (20, 6), ((6, 1), (0, 1))),
        ((4, 5, 6), [(4, 5, 6), (4, 5, 6)], (120,), ((1,), (1,))),
        ((4, 5, 6), [(4, 5, 6), (5, 1)], (4, 5, 6), ((30, 6, 1), (0, 1, 0))),
        ((4, 5, 6), [(4, 5, 6), (4, 1, 1)], (4, 30), ((30, 1), (1, 0))),
        ((1, 5, 1, 6), [(5, 1, 6), ()], (30,), ((1,), (0,))),
        ((1, 1), [(1, 1), (1,)], (1,), ((0,), (0,))),
        ((2, 3, 4, 5), [(2, 1, 4, 5), (3, 1, 1)], (2, 3, 20), ((20, 0, 1), (0, 1, 0))),
    ],
)
def test_dimensions_collapse_where_all_operands_agree(
    full: tuple[int, ...],
    shapes: list[tuple[int, ...]],
    extents: tuple[int, ...],
    strides: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    found = layout.collapse(full, tuple(layout.strides_in(s, full) for s in shapes))
    assert found == layout.StridedLayout(extents, strides)


@pytest.mark.parametrize("bits", [32, 64])
def test_divisor_divides_every_index(bits: int) -> None:
    """q = (high(n m) + n) >> s, without overflow, for every n below half the range."""
    source = random.Random(1)
    for extent in [
        1,
        2,
        3,
        7,
        10,
        197,
        768,
        1025,
        65535,
        65536,
        2**31 - 1,
        *(source.randrange(1, 2**31) for _ in range(200)),
    ]:
        value, multiplier, shift = layout.divisor(extent, bits)
        for n in (0, 1, extent - 1, extent, 2**31 - 1, 2 ** (bits - 1) - 1, source.randrange(2 ** (bits - 1))):
            total = (n * multiplier >> bits) + n
            assert total < 2**bits
            assert total >> shift == n // value


@pytest.mark.parametrize(
    ("sizes", "width"),
    [
        ((2,), 8),
        ((2, 2), 8),
        ((4,), 4),
        ((8,), 2),
        ((1,), 16),
        ((2, 4), 8),
        ((1, 2), 8),
        ((1, 4), 4),
        ((4, 8), 4),
        ((2, 8), 4),
    ],
)
def test_vector_width(sizes: tuple[int, ...], width: int) -> None:
    """16 bytes of the smallest type, and at most 32 of the largest; masks do not widen it."""
    assert layout.vector_width(sizes) == width
