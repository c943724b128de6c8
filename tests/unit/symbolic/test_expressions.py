"""What a planner computes: equal conditions are one object, facts hold, and a step at a time gives Python's values."""

from onnxfuse.symbolic.expressions import MOST_TERMS
from tests.unit.symbolic.test_recording import recording


def test_a_number_of_many_terms_becomes_one_factor() -> None:
    """Products of sums do not multiply out without end, and what is too large for a normal form is no error."""
    n, m = recording(3, 4)[1]
    total, plain = n + m, 7
    for step in range(1, 30):
        total, plain = total * (n + step) % 1000 + m, plain * (3 + step) % 1000 + 4
    assert total.value == plain
    assert len(((n + m) * (n + 1) * (m + 1) * (n + 5)).expression.terms) <= MOST_TERMS
