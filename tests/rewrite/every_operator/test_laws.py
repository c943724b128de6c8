"""A sample of random graphs of every operator; `make graphs` tries thousands."""

import pytest

from tests.rewrite.every_operator.laws import broken, case


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_a_random_graph_holds_every_law(first: int) -> None:
    """Equal in value and shape, the same when it is optimized again, itself when its fusions are undone."""
    assert {seed: said for seed in range(first, first + 10) if (said := broken(case(seed))) is not None} == {}


@pytest.mark.parametrize("seed", [361, 1612, 7742])
def test_what_random_graphs_have_found_stays_mended(seed: int) -> None:
    """Seven open axes, sampled as large ones, are more elements than 64 bits hold; a Slice may end at 2^63;
    ONNX's own inference stumbles on a MeanVarianceNormalization beside a function."""
    assert broken(case(seed)) is None
