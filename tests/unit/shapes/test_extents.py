"""An extent broadcasts against one alone."""

from onnxfuse.shapes.extents import broadcast
from tests.support.extents import extents


def test_an_extent_broadcasts_against_one_alone() -> None:
    """Of two names either may be 1."""
    assert broadcast([extents("b", 1, 5), extents("s", 5)]) == extents("b", "s", 5)
    assert broadcast([extents("b", 5), extents("s", 1)]) == extents(None, 5)
    assert broadcast([extents("b", 5), extents("b", "s")]) == extents("b", 5)
    assert broadcast([extents("b", 5), None]) is None
    assert broadcast([extents("s", "min(t,9)"), extents("min(512,s)", "t")]) == extents("s", "t")
