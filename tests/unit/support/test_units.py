"""Sizes and times, as people read them."""

import pytest

from onnxfuse.support.units import digits


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.86257, "0.8626"), (411.53, "411.5"), (1820.4, "1820"), (9999.4, "9999"), (9999.6, "10000"), (43041.7, "43042")],
)
def test_a_time_is_never_a_power_of_ten(value: float, text: str) -> None:
    """Four digits, or as many as it has before the point."""
    assert digits(value) == text
