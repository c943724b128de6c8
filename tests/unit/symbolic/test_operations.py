"""Beyond 64 bits no traced number is computed."""

import pytest

from onnxfuse.symbolic.evaluation import evaluated
from onnxfuse.symbolic.expressions import computed
from onnxfuse.symbolic.integer import Int
from onnxfuse.symbolic.operations import UnansweredError
from onnxfuse.symbolic.recording import extents_of
from tests.unit.symbolic.test_recording import recording


def test_beyond_64_bits_nobody_answers() -> None:
    n = recording(2**40)[1][0]
    assert (n * n < 2**64) is True
    with pytest.raises(UnansweredError):
        evaluated((n * n).expression, extents_of((2**40,)))
    assert computed("lt", Int.name("d0"), 2**63) is True
