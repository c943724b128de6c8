"""What is known to be whole numbers."""

import pytest

from onnxfuse.graph.facts.whole_numbers import is_whole
from tests.support.small import graph_of, parse

MODEL = """g (uint8[N,2] q, float[N,2] x, float[N,2] s) => (float[N,2] y)
<float[2] w = {1,-2}, float[2] h = {1,0.5}, float one = {1}, float half = {0.5}, uint8 z = {3}> {
  c = Cast <to = 1> (q)
  n = Cast <to = 10> (x)
  t = Transpose (c)
  d = DequantizeLinear (q, one, z)
  e = DequantizeLinear (q, half, z)
  o = Concat <axis = 0> (c, d)
  p = Concat <axis = 0> (c, x)
  y = Relu (x)
}"""


@pytest.mark.parametrize(("value", "whole"), [
    ("q", True), ("x", False), ("w", True), ("h", False), ("c", True), ("n", False), ("t", True), ("d", True),
    ("e", False), ("o", True), ("p", False), ("y", False),
])  # fmt: skip
def test_it_is_known(value: str, whole: bool) -> None:
    assert is_whole(graph_of(parse(MODEL, opset=21)), value) == whole


def test_one_step_too_far() -> None:
    graph = graph_of(parse(MODEL, opset=21))
    assert is_whole(graph, "t", depth=2)
    assert not is_whole(graph, "t", depth=1)
