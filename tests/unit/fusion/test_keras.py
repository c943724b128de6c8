"""A transformer's attention and norm as tf2onnx writes Keras's are those that every other model has."""

import numpy as np
import onnx
import pytest

from tests.support.small import assert_same_numbers, ops, optimize, parse

EINSUM = """
  shape{n} = Shape (x)  narrow{n} = Cast <to = 6> (shape{n})
  batch{n} = Slice (narrow{n}, i0, i1, i0)  wide{n} = Cast <to = 7> (batch{n})
  many{n} = Concat <axis = 0> (wide{n}, heads)  product{n} = ReduceProd (many{n})  larger{n} = Max (many{n}, many{n})"""


def attention(masked: str) -> onnx.ModelProto:
    """Return an attention of 4 heads of 16 on x [N,5,64]: its Einsums are products between Reshapes."""
    text = f"""g (float[N,5,64] x, bool[N,5] keep) => (float[N,5,64] y)
    <int64[1] i0 = {{0}}, int64[1] i1 = {{1}}, int64[1] i2 = {{2}}, int64[1] i3 = {{3}}, int64[1] i4 = {{4}},
     int64[1] heads = {{4}}, int64[1] size = {{16}}, int64[1] rows = {{5}}, int64[1] left = {{-1}},
     int64[4] apart = {{-1,5,4,16}}, int64[3] together = {{-1,5,64}}, float quarter = {{0.25}}, float low = {{-2e38}},
     int64[3] none = {{0,0,0}}, int64[3] all = {{1000000000,1000000000,1000000000}}, int64[3] axes = {{0,1,2}}> {{
      {EINSUM.format(n=1)}
      q3 = MatMul (x, wq)  q = Reshape (q3, apart)  k3 = MatMul (x, wk)  k = Reshape (k3, apart)
      v3 = MatMul (x, wv)  v = Reshape (v3, apart)
      qu = Unsqueeze (q, i3)  qt = Transpose <perm = [0,2,1,3,4]> (qu)
      ku = Unsqueeze (k, i1)  kt = Transpose <perm = [0,3,1,2,4]> (ku)
      merged = Concat <axis = 0> (product1, left, size)
      qr = Reshape (qt, merged)  kr = Reshape (kt, merged)  krt = Transpose <perm = [0,2,1]> (kr)
      dots = MatMul (qr, krt)  square = Concat <axis = 0> (larger1, rows, rows, i1)
      dots5 = Reshape (dots, square)  dots4 = Squeeze (dots5, i4)  s = Mul (dots4, quarter)
      m3 = Unsqueeze (keep, i1)  m3s = Slice (m3, none, all, axes)  mask = Unsqueeze (m3s, i1)
      {masked}
      pu = Unsqueeze (p, i3)  vu = Unsqueeze (v, i2)  vt = Transpose <perm = [0,3,2,4,1]> (vu)
      by_keys = Concat <axis = 0> (product1, left, rows)
      pr = Reshape (pu, by_keys)  vr = Reshape (vt, by_keys)  vrt = Transpose <perm = [0,2,1]> (vr)
      found = MatMul (pr, vrt)  five = Concat <axis = 0> (larger1, rows, size, i1)
      found5 = Reshape (found, five)  found4 = Squeeze (found5, i4)
      back = Transpose <perm = [0,2,1,3]> (found4)  y = Reshape (back, together) }}"""
    model = parse(text)
    rng = np.random.default_rng(0)
    for name in ("wq", "wk", "wv"):
        weight = (rng.standard_normal((64, 64)) / 8).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


@pytest.mark.parametrize(
    "masked",
    [
        "p = Softmax <axis = 3> (s)",
        # A choice: both of it times 1 or 0. All may be seen of what is as large as the scores.
        """scores = Shape (s)  truth = Constant <value = bool[1] {1}> ()  seen = Expand (truth, scores)
        both = And (seen, mask)  taken = Cast <to = 1> (both)  one = Mul (taken, s)
        hidden = Not (both)  not = Cast <to = 1> (hidden)  other = Mul (low, not)
        chosen = Add (one, other)  p = Softmax <axis = 3> (chosen)""",
    ],
    ids=["no mask", "mask"],
)
def test_an_einsum_that_is_written_as_a_product_is_the_product_of_an_attention(masked: str) -> None:
    model = attention(masked)
    made, _ = optimize(model)
    left = ops(made)
    assert [op for op in left if op.count("MatMul") == 2 and "Softmax" in op], left
    assert not {"Transpose", "Softmax"} & set(left)
    assert_same_numbers(model, made)


@pytest.mark.parametrize("mean", ["GlobalAveragePool ({})", "ReduceMean <axes = [2]> ({})"])
def test_a_norm_by_a_factor_and_a_shift_is_one_kernel(mean: str) -> None:
    model = parse(f"""g (float[N,S,4] a, float[N,S,4] r) => (float[N,S,4] y)
    <float epsilon = {{0.001}}, float[1,1,4] scale = {{1,-0.5,2,3}}, float[1,1,4] bias = {{0.1,0.2,-0.3,0}}> {{
      x = Add (a, r)  mean = {mean.format("x")}  negative = Neg (mean)  d = Sub (x, mean)  s = Mul (d, d)
      variance = {mean.format("s")}  stable = Add (variance, epsilon)  root = Sqrt (stable)
      inverse = Reciprocal (root)  m = Mul (inverse, scale)  scaled = Mul (x, m)  moved = Mul (negative, m)
      shift = Add (moved, bias)  y = Add (scaled, shift) }}""")
    made, _ = optimize(model)
    assert len(ops(made)) == 1
    assert_same_numbers(model, made)
