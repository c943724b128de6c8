"""Queries and keys are as wide as wider values, by zeros in their weights, and what is computed stays the same."""

import pytest

from onnxfuse.model.graph import Graph
from onnxfuse.model.types import infer
from onnxfuse.rewrite.simplify.padded_queries import pad_queries
from tests.rewrite.small import assert_same_numbers, fuses, ops, optimize, parse

TEXT = """g (float[N,5,8] x, float[N,2,5,5] mask) => (float[N,5,WIDTH] y)
<float scale = {0.25}, int64[4] narrow = {0,5,2,16}, int64[4] wide = {0,5,2,-1}, int64[3] flat = {0,5,WIDTH},
 float[8,32] wq = {Q}, float[8,32] wk = {K}, float[8,WIDTH] wv = {V}, float[32] bias = {B}> {
  mq = MatMul (x, wq)
  q = Add (bias, mq)
  q4 = Reshape (q, narrow)
  qh = Transpose <perm = [0,2,1,3]> (q4)
  k = MatMul (x, wk)
  k4 = Reshape (k, narrow)
  kt = Transpose <perm = [0,2,3,1]> (k4)
  ks = Mul (kt, scale)
  v = MatMul (x, wv)
  v4 = Reshape (v, wide)
  vh = Transpose <perm = [0,2,1,3]> (v4)
  s = MatMul (qh, ks)
  m = Add (mask, s)
  p = Softmax <axis = -1> (m)
  c = MatMul (p, vh)
  ct = Transpose <perm = [0,2,1,3]> (c)
  y = Reshape (ct, flat)
}"""
"""Two heads of 16 elements, whose values have 32, as LeViT's."""


def numbers(count: int, step: int) -> str:
    """Return so many numbers of both signs, in quarters."""
    return ",".join(str((n * step % 13 - 6) / 4) for n in range(count))


def text(values: int = 64) -> str:
    """Return the model with so many columns of values."""
    weights = {"Q": (8 * 32, 5), "K": (8 * 32, 7), "V": (8 * values, 11), "B": (32, 3)}
    filled = TEXT.replace("WIDTH", str(values))
    for name, (count, step) in weights.items():
        filled = filled.replace(f"{{{name}}}", f"{{{numbers(count, step)}}}")
    return filled


def test_queries_and_keys_get_zeros() -> None:
    """Their heads are as wide as the values', and the weights have as many columns; once is enough."""
    model = parse(text())
    made, _ = optimize(model, "expand")
    assert sorted(tuple(t.dims) for t in made.graph.initializer if len(t.dims) == 2) == [(8, 64)] * 3
    assert ops(made).count("MatMul") == 5
    assert_same_numbers(model, made)
    assert optimize(made, "expand")[0] == made


def test_attention_is_one_op() -> None:
    """As with values of the size of a key."""
    left = fuses(text())
    assert sum("Softmax" in op and op.count("MatMul") == 2 for op in left) == 1, left
    assert not {"Softmax", "Transpose"} & set(left)


LEFT = {
    "values as wide as keys": text(32),
    "much wider values": text(160),
    "no multiple of 16": text(48),
    "queries that leave": text().replace("(float[N,5,64] y)", "(float[N,5,64] y, float[N,5,32] q)"),
    "no weight": text().replace("float[N,5,8] x,", "float[N,5,8] x, float[8,32] w,").replace("(x, wk)", "(x, w)"),
    "a factor for each element": text().replace("float scale = {0.25}", f"float[16,1] scale = {{{numbers(16, 3)}}}"),
    "a number divided by keys": text().replace("ks = Mul (kt, scale)", "ks = Div (scale, kt)"),
    "over the queries": text().replace("axis = -1", "axis = 2"),
    "keys that are worked on": text().replace("(k4)", "(kr)").replace("  kt =", "  kr = Relu (k4)\n  kt ="),
}  # fmt: skip


def test_what_is_told_apart() -> None:
    """Each of the models below has one thing else than this one."""
    model = parse(text())
    assert pad_queries(Graph(model.graph, infer(model).graph, 17))


@pytest.mark.parametrize("name", list(LEFT))
def test_the_rest_stays(name: str) -> None:
    """Also before opset 13, where a Softmax is of all axes behind its own."""
    model = parse(LEFT[name])
    assert not pad_queries(Graph(model.graph, infer(model).graph, 17))
    assert not pad_queries(Graph(model.graph, infer(model).graph, 12))
