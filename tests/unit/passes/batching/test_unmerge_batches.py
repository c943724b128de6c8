"""Products over merged batch axes run over the axes themselves, and compute the same."""

import re

import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.passes.batching.unmerge_batches import unmerge_batches
from onnxfuse.shapes.inference import infer
from tests.support.small import assert_same_numbers, fuses, ops, optimize, parse

HEAD = """g (float[N,S,8] q, float[N,S,8] k, float[N,S,8] v, float[N,2,S] alibi, float[N,1,S,S] mask)
  => (float[N,S,8] y)
<float scale = {0.5}, int64[4] split = {0, 0, 2, 4}, int64 i0 = {0}, int64 i1 = {1}, int64[1] axis = {0},
 int64 heads = {2}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}, int64[1] eight = {8}> {
  extents = Shape (q)
  n = Gather (extents, i0)
  s = Gather (extents, i1)
  nh = Mul (n, heads)
  n1 = Unsqueeze (n, axis)
  s1 = Unsqueeze (s, axis)
  nh1 = Unsqueeze (nh, axis)
  merged = Concat <axis = 0> (nh1, s1, four)
  scored = Concat <axis = 0> (n1, two, s1, s1)
  probable = Concat <axis = 0> (nh1, s1, s1)
  biased = Concat <axis = 0> (nh1, one, s1)
  q4 = Reshape (q, split)
  qt = Transpose <perm = [0,2,1,3]> (q4)
  q3 = Reshape (qt, merged)
  k4 = Reshape (k, split)
  kt = Transpose <perm = [0,2,1,3]> (k4)
  k3 = Reshape (kt, merged)
  v4 = Reshape (v, split)
  vt = Transpose <perm = [0,2,1,3]> (v4)
  v3 = Reshape (vt, merged)
"""
"""Queries, keys and values of two heads, each [N * 2, S, 4]."""

TAIL = """
  o = MatMul (p3, v3)
  rows = Shape (o)
  both = Gather (rows, i0)
  batch = Div (both, heads)
  batch1 = Unsqueeze (batch, axis)
  apart = Concat <axis = 0> (batch1, two, s1, four)
  o4 = Reshape (o, apart)
  ot = Transpose <perm = [0,2,1,3]> (o4)
  flat = Concat <axis = 0> (batch1, s1, eight)
  y = Reshape (ot, flat)
}"""
"""Comes apart by the batch that it finds in the merged axis."""

BLOOM = f"""{HEAD}
  a3 = Reshape (alibi, biased)
  bias = Tanh (a3)
  kx = Transpose <perm = [0,2,1]> (k3)
  s3 = MatMul (q3, kx)
  s3s = Mul (s3, scale)
  s3b = Add (s3s, bias)
  s4 = Reshape (s3b, scored)
  s4m = Add (s4, mask)
  p4 = Softmax <axis = -1> (s4m)
  p3 = Reshape (p4, probable)
{TAIL}"""
"""The softmax of four axes: [N, 2, S, S] meets the mask."""

FAIRSEQ = f"""{HEAD}
  kx = Transpose <perm = [0,2,1]> (k3)
  s3 = MatMul (q3, kx)
  p3 = Softmax <axis = 2> (s3)
{TAIL}"""
"""The softmax of three axes, the last of which is called 2."""


@pytest.mark.parametrize("text", [BLOOM, FAIRSEQ], ids=["apart for the mask", "merged all the way"])
@pytest.mark.parametrize("batch", ["N", "1", "3"])
def test_heads_are_an_axis_of_their_own(text: str, batch: str) -> None:
    """What is left of it is the attention that every other model has; the same with a batch that is a number."""
    model = parse(text.replace("[N,", f"[{batch},"))
    made, _ = optimize(model, "expand")
    left = ops(made)
    assert left.count("MatMul") == 2
    assert left.count("Reshape") <= 4  # to heads, three times, and back
    assert "Shape" not in left
    assert_same_numbers(model, made)
    assert optimize(made, "expand")[0] == made


@pytest.mark.parametrize("text", [BLOOM, FAIRSEQ], ids=["apart for the mask", "merged all the way"])
def test_attention_is_one_op(text: str) -> None:
    """With biases by head and masks by position both."""
    left = fuses(text)
    assert sum("Softmax" in op and op.count("MatMul") == 2 for op in left) == 1, left
    assert "Softmax" not in left


@pytest.mark.parametrize("text", [BLOOM, FAIRSEQ], ids=["apart for the mask", "merged all the way"])
def test_allowzero_on_a_computed_target_changes_nothing(text: str) -> None:
    """Torch's exporter of today writes it on every Reshape; the types say what each makes."""
    newer = re.sub(
        r"Reshape (\(\w+, (merged|biased|scored|probable|apart|flat)\))", r"Reshape <allowzero = 1> \1", text
    )
    assert newer.count("allowzero") > 4
    model = parse(newer)
    made, _ = optimize(model, "expand")
    assert ops(made) == ops(optimize(parse(text), "expand")[0])
    assert_same_numbers(model, made)


TURNED = """<ir_version: 8, opset_import: ["" : 18]> g (float[N,2,S,4] k) => (float[N,2,4,S] y)
  <int64[1] rest = {-1}, int64[1] four = {4}> {
  s = Shape <start = 2, end = 3> (k)
  outer = Shape <start = 0, end = 2> (k)
  merged = Concat <axis = 0> (rest, s, four)
  k3 = Reshape (k, merged)
  kx = Transpose <perm = [0,2,1]> (k3)
  apart = Concat <axis = 0> (outer, four, s)
  y = Reshape (kx, apart)
}"""


def test_what_is_turned_between_reshapes_is_turned_where_it_is() -> None:
    """As torch's exporter writes the keys of an attention: no target is left that is computed in each run."""
    model = parse(TURNED)
    made, _ = optimize(model, "expand")
    assert ops(made) == ["Transpose"]
    assert_same_numbers(model, made)


LEFT = {
    "nothing comes apart": """g (float[N,2,S,4] q, float[N,2,S,4] k) => (float[H,S,S] y) <int64[3] to = {-1, 5, 4}> {
      q3 = Reshape (q, to)  k3 = Reshape (k, to)  kx = Transpose <perm = [0,2,1]> (k3)  y = MatMul (q3, kx) }""",
    "along the merged axis": """g (float[3,2,5,4] q, float[3,2,4,5] k) => (float[3,2,5,5] y)
      <int64[3] left = {6, 5, 4}, int64[3] right = {6, 4, 5}, int64[4] apart = {3, 2, 5, 5}> {
      q3 = Reshape (q, left)  k3 = Reshape (k, right)  s = MatMul (q3, k3)  p = Softmax <axis = 0> (s)
      y = Reshape (p, apart) }""",
    "no product": """g (float[3,2,5,4] x) => (float[3,2,5,4] y)
      <int64[3] merged = {6, 5, 4}, int64[4] apart = {3, 2, 5, 4}> {
      x3 = Reshape (x, merged)  p = Softmax <axis = -1> (x3)  y = Reshape (p, apart) }""",
    "a product with a weight": """g (float[3,2,5,4] x, float[4,7] w) => (float[3,2,5,7] y)
      <int64[3] merged = {6, 5, 4}, int64[4] apart = {3, 2, 5, 7}> {
      x3 = Reshape (x, merged)  p = MatMul (x3, w)  y = Reshape (p, apart) }""",
    "also read merged": """g (float[3,2,5,4] q, float[3,2,4,5] k) => (float[3,2,5,5] y, float[5,5] z)
      <int64[3] left = {6, 5, 4}, int64[3] right = {6, 4, 5}, int64[4] apart = {3, 2, 5, 5}, int64[1] a = {0}> {
      q3 = Reshape (q, left)  k3 = Reshape (k, right)  s = MatMul (q3, k3)  y = Reshape (s, apart)
      z = ReduceSum <keepdims = 0> (s, a) }""",
}


@pytest.mark.parametrize("name", list(LEFT))
def test_the_rest_stays(name: str) -> None:
    """Also before opset 13, where a Softmax is of all axes behind its own."""
    model = parse(LEFT[name])
    assert not unmerge_batches(Graph(model.graph, infer(model).graph, 17))
    assert not unmerge_batches(Graph(model.graph, infer(model).graph, 12))


WIDE = """g (float[3,2,5,4] q, float[3,2,4,5] k, float[1,5,5] mask, float[5] row, float c)
  => (float[3,2,5,5] y, float[6,25] z)
  <int64[3] left = {6, 5, 4}, int64[3] right = {6, 4, 5}, int64[4] apart = {3, 2, 5, 5}, int64[2] flat = {6, 25}> {
  q3 = Reshape (q, left)
  k3 = Reshape (k, right)
  s = MatMul (q3, k3)
  m = Add (s, mask)
  r = Mul (m, row)
  l = Clip (r, c)
  y = Reshape (l, apart)
  z = Reshape (l, flat)
}"""


def test_what_has_fewer_axes_or_one_for_all_stays_as_it_is() -> None:
    """A mask for all of the merged axis gets an axis more; another Reshape reads what is apart."""
    model = parse(WIDE)
    made, _ = optimize(model, "expand")
    assert ops(made) == ["MatMul", "Unsqueeze", "Add", "Mul", "Clip", "Identity", "Reshape"]
    assert_same_numbers(model, made)


INSIDE = """g (float[N,2,S,4] q, float[N,2,4,S] k, bool b) => (float[N,2,S,S] y)
  <int64[3] left = {-1, 5, 4}, int64[3] right = {-1, 4, 5}, int64[4] apart = {-1, 2, 5, 5}> {
  q3 = Reshape (q, left)
  k3 = Reshape (k, right)
  s = MatMul (q3, k3)
  y = If <then_branch = t () => (float[M,2,T,T] u) { u = Reshape (s, apart) },
          else_branch = e () => (float[M,2,T,T] w) { w = Reshape (s, apart) }> (b)
}"""


def test_what_a_branch_reads_stays() -> None:
    """There nobody looks."""
    model = parse(INSIDE)
    assert not unmerge_batches(Graph(model.graph, infer(model).graph, 17))
