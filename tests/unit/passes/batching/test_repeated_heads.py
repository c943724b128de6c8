"""One key and value for all heads of queries: the product that broadcasts them becomes grouped-query attention."""

import pytest

from tests.support.small import assert_same_numbers, fuses, ops, optimize, parse

TEXT = """g (float[N,3,S,16] q, float[N,1,T,16] k, float[N,1,T,16] v, float[N,1,S,T] mask) => (float[N,S,48] y)
<float half = {0.5}, int64[3] flat = {0,0,48}> {
  kt = Transpose <perm = [0,1,3,2]> (k)
  qs = Mul (q, half)
  ks = Mul (half, kt)
  s = MatMul (qs, ks)
  m = Add (s, mask)
  p = Softmax <axis = -1> (m)
  c = MatMul (p, v)
  ct = Transpose <perm = [0,2,1,3]> (c)
  y = Reshape (ct, flat)
}"""


def test_it_is_attention_of_repeated_heads() -> None:
    """As one op, which reads the one head before it is repeated; optimized once more it stays so."""
    model = parse(TEXT)
    made, _ = optimize(model)
    assert_same_numbers(model, made)
    assert [op.count("Expand") for op in ops(made)] == [2], ops(made)
    assert ops(optimize(made)[0]) == ops(made)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[N,1,T,16] k", "[N,3,T,16] k"),
        ("16]", "12]"),
        ("axis = -1", "axis = 2"),
        ("y = Reshape", "e = Exp (ks) y = Reshape"),
        ("float", "double"),
    ],
)
def test_what_no_kernel_takes_is_not_repeated(old: str, new: str) -> None:
    """Keys of each head, heads off a boundary, a softmax over queries, keys that something else reads, doubles."""
    text = TEXT.replace(old, new)
    if "Exp" in new:
        text = text.replace("y)", "y, float[N,1,16,T] e)", 1)
    if new == "12]":
        text = text.replace("48", "36")
    assert "Expand" not in " ".join(fuses(text, "softmax"))
