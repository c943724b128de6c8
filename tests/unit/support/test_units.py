"""Sizes and times, as people read them."""

import pytest

from onnxfuse.support.units import Factor, digits


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.86257, "0.8626"), (411.53, "411.5"), (1820.4, "1820"), (9999.4, "9999"), (9999.6, "10000"), (43041.7, "43042")],
)
def test_a_time_is_never_a_power_of_ten(value: float, text: str) -> None:
    """Four digits, or as many as it has before the point."""
    assert digits(value) == text


def test_a_factor_is_decided_by_its_range() -> None:
    """Where the range holds 1 nothing is decided, and it is no difference only if it is small at both ends."""
    assert (str(Factor(1.5, 1.4, 1.6)), str(Factor(0.5, 0.4, 0.6))) == ("1.50x", "0.50x")
    assert str(Factor(1.01, 0.96, 1.04)) == "no difference"
    assert str(Factor(1.45, 0.9, 2.1)) == "undecided, 0.90x to 2.10x"
    assert str(Factor(1.0, 0.94, 1.0)) == "undecided, 0.94x to 1.00x"
    assert Factor(1.04, 1.01, 1.05).decided
