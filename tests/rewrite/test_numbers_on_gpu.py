"""A number computed from shapes that a kernel reads as data is written on the GPU by Range: the same number."""

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfuse.rewrite import pipeline
from tests.rewrite.small import parse

LEGACY = """g (float[N,S] x, int64[N,S] ids) => (float[N,S] y, int64[N,S] z, bool[N,S] late, float[N,S] w) {
  s = Shape (x)  i0 = Constant <value = int64 {0}> ()  i1 = Constant <value = int64 {1}> ()
  n = Gather (s, i0)  t = Gather (s, i1)
  f = Cast <to = 1> (t)  r = Sqrt (f)  a = Relu (x)  y = Div (a, r)
  p = Mul (n, t)  k = Abs (ids)  z = Add (k, p)
  late = Less (k, t)
  m = Cast <to = 10> (n)  h = Cast <to = 10> (a)  q = Mul (h, m)  v = Cast <to = 1> (q)  w = Add (v, f)
}"""
"""Numbers in int64, float32 and float16, one of them read twice."""

INPUT = """g (float[N,8] x) => (float[N,8] y) {
  s = Shape <start = 0, end = 1> (x)  n = Cast <to = 1> (s)  y = Mul (x, n) }"""
"""ONNX Runtime would keep the Mul on the CPU: it reads an input of the model and a number from a shape."""

LEFT = {
    "arguments": """g (float[N,8] x) => (float[M,K] y) { s = Shape <start = 0, end = 1> (x)
      o = Constant <value = int64[1] {-1}> ()  d = Concat <axis = 0> (s, o)  r = Reshape (x, d)  y = Relu (r) }""",
    "an output": "g (float[N,8] x) => (int64[1] y) { s = Shape <start = 0, end = 1> (x)  y = Add (s, s) }",
    "a small input": """g (float[N,8] x, int64[1] past) => (float[M] y) {
      s = Shape <start = 0, end = 1> (x)  t = Add (s, past)  y = ConstantOfShape (t) }""",
    "an input that is a shape": """g (float[N,8] x, int64[K] grid) => (float[M] y) {
      s = Shape <start = 0, end = 1> (x)  t = Mul (s, grid)  y = ConstantOfShape (t) }""",
    "a limit": """g (float[N,8] x, float low) => (float[N,8] y) {
      s = Shape <start = 0, end = 1> (x)  e = Squeeze (s)  n = Cast <to = 1> (e)  y = Clip (x, low, n) }""",
}


def both(before: onnx.ModelProto, after: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[list[np.ndarray]]:
    cpu = ["CPUExecutionProvider"]
    return [
        onnxruntime.InferenceSession(m.SerializeToString(), providers=cpu).run(None, feeds) for m in (before, after)
    ]


@pytest.mark.parametrize("rows", [1, 3])
def test_numbers_are_the_same(rows: int) -> None:
    """In every element type, each drawn once however many read it; optimizing again changes nothing."""
    model = parse(LEGACY)
    made = parse(LEGACY)
    pipeline.run(made, rules=())
    assert pipeline.count_ops(made)["Range"] == 3  # n, t and n * t
    rng = np.random.default_rng(rows)
    feeds = {"x": rng.standard_normal((rows, 5), np.float32), "ids": rng.integers(-9, 9, (rows, 5))}
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


@pytest.mark.parametrize("name", list(LEFT))
def test_what_is_read_on_the_cpu_stays_there(name: str) -> None:
    """Kernels' arguments, outputs, arithmetic with small inputs, and limits that CUDA's Clip reads on the CPU."""
    made = parse(LEFT[name])
    pipeline.run(made, rules=())
    assert pipeline.count_ops(made)["Range"] == 0
