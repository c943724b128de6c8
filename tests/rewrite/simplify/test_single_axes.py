"""Axes of extent 1 that are taken out and put in again are left alone; what says something stays."""

import pytest

import onnxfuse
from tests.rewrite.small import assert_same_numbers, ops, parse

WEIGHTS = "int64[1] one = {1}, int64[1] two = {2}, int64[1] flat = {-1}, int64[4] whole = {-1,1,1,4}"


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ("a = Squeeze (x, one)  u = Unsqueeze (a, two)  y = Neg (u)", ["Neg"]),
        ("a = Squeeze (x, one)  b = Unsqueeze (a, two)  u = Unsqueeze (b, one)  y = Neg (u)", ["Unsqueeze", "Neg"]),
        ("a = Squeeze (x, one)  b = Squeeze (a, one)  c = Unsqueeze (b, one)  u = Unsqueeze (c, one)  y = Neg (u)",
         ["Neg"]),
        # The first one is read elsewhere.
        ("a = Squeeze (x, one)  u = Unsqueeze (a, two)  n = Neg (u)  f = Neg (a)  g = Unsqueeze (f, one) "
         " y = Add (n, g)",
         ["Squeeze", "Neg", "Neg", "Unsqueeze", "Add"]),
        ("a = Reshape (x, flat)  b = Reshape (a, whole)  y = Neg (b)", ["Reshape", "Reshape", "Neg"]),
    ],
)  # fmt: skip
def test_what_has_its_shape_back(nodes: str, left: list[str]) -> None:
    model = parse(
        f"g (float[N,1,1,4] x) => (float y) <{WEIGHTS}> {{ {nodes.replace('y =', 'z =')} y = ReduceSum (z) }}"
    )
    alone = onnxfuse.optimize(model, only=["softmax"])
    assert sorted(ops(alone)) == sorted([*left, "ReduceSum"])
    assert_same_numbers(model, alone)


def test_an_extent_that_nobody_knows_is_not_the_same() -> None:
    model = parse("""g (float[N,M] x, int64[1] out, int64[1] back) => (float y) {
      a = Unsqueeze (x, out)  b = Squeeze (a, back)  z = Neg (b)  y = ReduceSum (z)
    }""")
    assert ops(onnxfuse.optimize(model, only=["softmax"])) == ["Unsqueeze", "Squeeze", "Neg", "ReduceSum"]
