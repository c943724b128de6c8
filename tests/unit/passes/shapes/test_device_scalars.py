"""A number computed from shapes that a kernel reads as data is written on the GPU by Range: the same number."""

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfuse.passes import pipeline
from tests.support.small import parse

LEGACY = """g (float[N,S] x, int64[N,S] ids) => (float[N,S] y, int64[N,S] z, int64[N,S] below, bool[N,S] late,
                                             float[N,S] w) {
  s = Shape (x)  i0 = Constant <value = int64 {0}> ()  i1 = Constant <value = int64 {1}> ()
  n = Gather (s, i0)  t = Gather (s, i1)
  f = Cast <to = 1> (t)  r = Sqrt (f)  a = Relu (x)  y = Div (a, r)
  p = Mul (n, t)  k = Abs (ids)  z = Add (k, p)
  late = Less (k, t)
  b = Sub (i0, p)  e = Cast <to = 6> (b)  c = Cast <to = 6> (ids)  g0 = Mul (c, e)  below = Cast <to = 7> (g0)
  m = Cast <to = 10> (n)  h = Cast <to = 10> (a)  q = Mul (h, m)  v = Cast <to = 1> (q)  w = Add (v, f)
}"""
"""Numbers in int64, int32, float32 and float16, one of them below 0, one read twice."""

INPUT = """g (float[N,8] x) => (float[N,8] y) {
  s = Shape <start = 0, end = 1> (x)  n = Cast <to = 1> (s)  y = Mul (x, n) }"""
"""ONNX Runtime would keep the Mul on the CPU: it reads an input of the model and a number from a shape."""

ANGLES = """g (float16[N,2,P,8] past, float16[N,1,8] x) => (float16[N,1,8] y)
<int64 second = {2}, int64[1] none = {0}, float[4] speeds = {1.0, 0.5, 0.25, 0.125}, int64[1] front = {0}> {
  s = Shape (past)  p = Gather (s, second)  at = Add (none, p)
  row = Unsqueeze (at, front)  f = Cast <to = 1> (row)  a = Mul (f, speeds)  both = Concat <axis = -1> (a, a)
  c = Cos (both)  h = Cast <to = 10> (c)  all = Unsqueeze (h, front)  y = Mul (x, all) }"""
"""RoPE of one token behind a cache: its position is a number, its angles are not, and all of them on the CPU."""

FAR = """g (float[N,2,P,8] past, float16[N,1,8] x) => (float16[N,1,8] y, float16[N,1,8] z)
<int64 second = {2}, int64[1] none = {0}, int64[1] front = {0}, int64[2] both = {0, 1}, float most = {4.0},
 float one = {1.0}, float some = {0.5}> {
  s = Shape (past)  p = Gather (s, second)  again = Cast <to = 7> (p)
  at = Add (again, none)  row = Unsqueeze (at, front)  f = Cast <to = 1> (row)
  d = Div (f, most)  w = Floor (d)  a = Add (w, one)  l = Log (a)  m = Mul (l, some)
  b = Add (m, one)  u = Unsqueeze (b, front)  h = Cast <to = 10> (u)  y = Mul (x, h)
  other = Unsqueeze (p, both)  g = Cast <to = 10> (other)  z = Add (x, g) }"""
"""Queries that are scaled by the logarithm of their position (Ministral 3), and another view of the position."""

LEFT = {
    "arguments": """g (float[N,8] x) => (float[M,K] y) { s = Shape <start = 0, end = 1> (x)
      o = Constant <value = int64[1] {-1}> ()  d = Concat <axis = 0> (s, o)  r = Reshape (x, d)  y = Relu (r) }""",
    "an output": "g (float[N,8] x) => (int64[1] y) { s = Shape <start = 0, end = 1> (x)  y = Add (s, s) }",
    "a small input": """g (float[N,8] x, int64[1] past) => (float[M] y) {
      s = Shape <start = 0, end = 1> (x)  t = Add (s, past)  y = ConstantOfShape (t) }""",
    "a part of an input": """g (float[N,8] x, int64[1] past) => (int64[N,8] y) {
      s = Shape <start = 0, end = 1> (x)  t = Add (s, past)  k = Cast <to = 7> (x)  y = Add (k, t) }""",
    "an input that is a shape": """g (float[N,8] x, int64[K] grid) => (float[M] y) {
      s = Shape <start = 0, end = 1> (x)  t = Mul (s, grid)  y = ConstantOfShape (t) }""",
    "an input that is a shape in the end": """g (float[N,8] x, int64[K] grid) => (float[M] y) {
      s = Shape <start = 0, end = 1> (x)  t = Mul (s, grid)  u = Neg (t)  v = Abs (u)  y = ConstantOfShape (v) }""",
    "no number": """g (float[N,2] x) => (float[N,2] y) {
      s = Shape (x)  n = Cast <to = 1> (s)  a = Relu (x)  y = Mul (a, n) }""",
    "never captured": """g (float[N,8] x, bool c) => (float[N,8] y) {
      s = Shape <start = 0, end = 1> (x)  n = Cast <to = 1> (s)  a = Relu (x)  b = Mul (a, n)
      y = If (c) <then_branch = a () => (float[N,8] t) { t = Relu (b) },
                  else_branch = b () => (float[N,8] e) { e = Mul (b, n) }> }""",
    "a limit": """g (float[N,8] x, float low) => (float[N,8] y) {
      s = Shape <start = 0, end = 1> (x)  e = Squeeze (s)  n = Cast <to = 1> (e)  y = Clip (x, low, n) }""",
}


def both(before: onnx.ModelProto, after: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[list[np.ndarray]]:
    cpu = ["CPUExecutionProvider"]
    return [
        onnxruntime.InferenceSession(m.SerializeToString(), providers=cpu).run(None, feeds) for m in (before, after)
    ]


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_numbers_are_the_same(rows: int) -> None:
    """In every element type, each drawn once however many read it; optimizing again changes nothing."""
    model = parse(LEGACY)
    made = parse(LEGACY)
    pipeline.run(made, rules=())
    assert pipeline.count_ops(made)["Range"] == 4  # n, t, n * t and -n * t
    assert pipeline.count_ops(made)["Sqrt"] == 1  # none is left on the CPU, where nobody reads it
    rng = np.random.default_rng(rows)
    feeds: dict[str, np.ndarray] = {
        "x": rng.standard_normal((rows, 5), np.float32),
        "ids": rng.integers(-9, 9, (rows, 5)),
    }
    for mine, theirs in zip(*both(made, model, feeds), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    again = onnx.ModelProto()
    again.CopyFrom(made)
    pipeline.run(again, rules=())
    assert again.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)


def test_an_input_beside_a_number_is_read_on_the_gpu() -> None:
    """Only the number goes another way; the input is read as before."""
    made = parse(INPUT)
    pipeline.run(made, rules=())
    (product,) = (n for n in made.graph.node if n.op_type == "Mul")
    assert product.input[0] == "x"
    assert product.input[1].endswith("on_gpu")
    x = np.ones((3, 8), np.float32)
    mine, theirs = both(made, parse(INPUT), {"x": x})
    np.testing.assert_array_equal(mine[0], theirs[0])


def test_what_is_computed_of_one_number_is_computed_on_the_gpu() -> None:
    """Angles of one position: the position is drawn, and what follows from it reads that."""
    made = parse(ANGLES)
    pipeline.run(made, rules=())
    assert pipeline.count_ops(made)["Range"] == 1
    assert pipeline.count_ops(made)["Cos"] == 1
    (angle,) = (n for n in made.graph.node if n.op_type == "Cos")
    assert angle.input[0].endswith("on_gpu")
    rng = np.random.default_rng(0)
    for past in (0, 7):
        shapes = {"past": (3, 2, past, 8), "x": (3, 1, 8)}
        feeds = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
        mine, theirs = both(made, parse(ANGLES), feeds)
        np.testing.assert_array_equal(mine[0], theirs[0])


def test_views_of_one_number_are_drawn_once_and_what_is_far_from_it_is_computed() -> None:
    made = parse(FAR)
    pipeline.run(made, rules=())
    counted = pipeline.count_ops(made)
    assert (counted["Range"], counted["Log"]) == (1, 1)
    (log,) = (n for n in made.graph.node if n.op_type == "Log")
    assert log.input[0].endswith("on_gpu")
    rng = np.random.default_rng(0)
    for length in (0, 1, 11):
        feeds: dict[str, np.ndarray] = {
            "past": rng.standard_normal((3, 2, length, 8)).astype(np.float32),
            "x": rng.standard_normal((3, 1, 8)).astype(np.float16),
        }
        for mine, theirs in zip(*both(made, parse(FAR), feeds), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", list(LEFT))
def test_what_is_read_on_the_cpu_stays_there(name: str) -> None:
    """Kernels' arguments, outputs, what an input has a part in, and the limits of Clip; what no graph holds, too."""
    made = parse(LEFT[name])
    pipeline.run(made, rules=())
    assert pipeline.count_ops(made)["Range"] == 0


def test_older_operator_sets_have_no_range() -> None:
    """Nothing is written that is not there."""
    made = parse(INPUT.replace("Shape <start = 0, end = 1> (x)", "Shape (x)").replace("[N,8]", "[N]"), opset=10)
    pipeline.run(made, rules=())
    assert pipeline.count_ops(made)["Range"] == 0
