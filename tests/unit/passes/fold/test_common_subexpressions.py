"""Positions and extents that are computed twice are computed once, from the start."""

import onnxfuse
from tests.support.small import assert_same_numbers, ops, parse

TWICE = """g (float[N,S] x, float[1] u, float[1] v) => (float[A] y, float[B] z)
<int64 p0 = {0}, int64 p1 = {1}, int64[3] column = {-1, 1, 1}, int64[2] row = {-1, 1}, int64[1] zero = {0},
 int64[1] second = {1}, int64[1] two = {2}, int64[1] end = {99}, int64[2] here = {5, 6}, int64[2] there = {7, 8}> {
  s = Shape (x)  n = Gather (s, p0)  c = Gather (s, p1)
  r1 = Range (p0, n, p1)  c1 = Range (p0, c, p1)  t1 = Slice (c1, two, end, zero)
  r2 = Range (p0, n, p1)  c2 = Range (p0, c, p1)  t2 = Slice (c2, two, end, zero)
  m1 = Reshape (r1, column)  k1 = Reshape (t1, row)  g1 = Add (m1, k1)  h1 = Add (g1, here)  w1 = Shape (h1)
  m2 = Reshape (r2, column)  k2 = Reshape (t2, row)  g2 = Add (m2, k2)  h2 = Add (g2, there)  w2 = Shape (h2)
  e1 = Gather (w1, second)  y = Expand (u, e1)  e2 = Gather (w2, second)  z = Expand (v, e2)
}"""
"""Two grids of positions, of which nobody says that they are as large: how long a Slice is has no name."""


def test_positions_are_computed_once_and_a_second_run_finds_nothing_more() -> None:
    """Longformer's layers: where the grids became one at the end alone, a second run knew that their extents are."""
    model = parse(TWICE, 18)
    made = onnxfuse.optimize(model, only=["softmax"])
    kept = ops(made)
    assert [kept.count(op) for op in ("Range", "Slice", "Reshape", "Add", "Expand")] == [2, 1, 2, 2, 2]
    assert_same_numbers(model, made)
    assert onnxfuse.optimize(made, only=["softmax"]).graph == made.graph
