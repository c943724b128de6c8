"""One head of keys and values that all queries read is read once, and no product broadcasts it."""

import pytest

from tests.support.small import fuses, optimize, parse

TEXT = """g (float16[N,4,S,16] q, float16[N,1,S,16] k, float16[N,1,S,16] v) => (float16[N,4,S,16] y)
<float16 root = {4}, int64[4] four = {1,4,1,1}> {
  KEYS
  s = MatMul (q, kt)
  d = Div (s, root)
  p = Softmax <axis = -1> (d)
  VALUES
  y = MatMul (p, vh)
}"""

BROADCAST = ("kt = Transpose <perm = [0,1,3,2]> (k)", "vh = Identity (v)")
EXPANDED = ("e = Expand (k, four)  kt = Transpose <perm = [0,1,3,2]> (e)", "vh = Expand (v, four)")
SCALED = ("t = Transpose <perm = [0,1,3,2]> (k)  kt = Mul (t, root)", "vh = Identity (v)")


@pytest.mark.parametrize("nodes", [BROADCAST, EXPANDED, SCALED])
def test_one_head_is_one_attention(nodes: tuple[str, str]) -> None:
    """Whether products broadcast it, an Expand repeats it, or the keys are scaled before the product."""
    keys, values = nodes
    text = TEXT.replace("KEYS", keys).replace("VALUES", values)
    (left,) = fuses(text.replace("Div (s, root)", "Identity (s)") if "Mul" in keys else text, "attention")
    assert (left.count("MatMul"), left.count("Expand")) == (2, 2), left


def test_once_is_enough() -> None:
    """What has that form stays as it is, with other rules, too."""
    model = parse(TEXT.replace("KEYS", BROADCAST[0]).replace("VALUES", BROADCAST[1]))
    made, _ = optimize(model, "softmax")
    assert optimize(made, "softmax")[0] == made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("16]", "12]"),  # no size of a head that attention takes
        ("float16[N,1,S,16] v", "float16[N,4,S,16] v"),  # values of each head
    ],
)
def test_what_attention_does_not_take_stays(old: str, new: str) -> None:
    """Repeated heads would be written for nothing."""
    text = TEXT.replace("KEYS", BROADCAST[0]).replace("VALUES", BROADCAST[1]).replace(old, new)
    assert not any("Expand" in op for op in fuses(text, "softmax"))


BATCH = """g (float16[1,4,S,16] q, float16[1,1,S,16] k, float16[1,1,S,16] v) => (float16[2,4,S,16] y)
<int64[4] four = {2,4,1,1}> {"""
KEYS = """g (float16[N,4,S,16] q, float16[N,1,1,16] k, float16[N,1,1,16] v) => (float16[N,4,S,16] y)
<int64[4] four = {1,4,7,1}> {"""


@pytest.mark.parametrize("head", [BATCH, KEYS])
def test_an_expand_that_repeats_more_than_heads_stays(head: str) -> None:
    """Of the batch, or of the keys: it would go with the head's."""
    nodes = "\n".join([*EXPANDED, "s = MatMul (q, kt)  p = Softmax <axis = -1> (s)  y = MatMul (p, vh)"])
    assert not any("Unsqueeze" in op for op in fuses(f"{head} {nodes} }}", "softmax"))


def test_scores_of_something_else_have_no_repeated_heads() -> None:
    """No kernel would read them: soft-capped scores stay two products and a softmax."""
    text = TEXT.replace("KEYS", BROADCAST[0]).replace("VALUES", BROADCAST[1])
    capped = text.replace("p = Softmax <axis = -1> (d)", "c = Tanh (d)  p = Softmax <axis = -1> (c)")
    assert not any("Expand" in op for op in fuses(capped, "softmax"))
