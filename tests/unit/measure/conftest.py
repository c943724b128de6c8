"""A model to time."""

import onnx
import pytest

from tests.unit.measure.benchmark.test_compare import parsed


@pytest.fixture
def original() -> onnx.ModelProto:
    """A table that is looked up, a residual, a norm: an index input, a float input, two dynamic dimensions."""
    return parsed("""g (int64[batch, words] ids, float[batch, words, 4] r) => (float[batch, words, 4] y)
    <float[3, 4] table = {1,2,3,4,-1,-2,-3,-4,5,6,7,8}, float[4] scale = {1,1,1,1}> {
      e = Gather (table, ids)  s = Add (e, r)  a = Relu (s)  y = LayerNormalization (a, scale)
    }""")
