"""A Tile of extents of 1 is an Expand; one that copies more stays."""

import pytest

import onnxfuse
from onnxfuse.model.fused import fused_ops
from tests.support.small import assert_same_numbers, ops, parse


@pytest.mark.parametrize(
    ("repeats", "left"),
    [
        ("1,1,3,1", ["Expand", "Neg"]), ("2,1,3,1", ["Tile", "Neg"]), ("1,1,1,1", ["Expand", "Neg"]),
        ("1,1,0,1", ["Tile", "Neg"]), ("1,1,1,2", ["Tile", "Neg"]),
    ],
)  # fmt: skip
def test_what_repeats_extents_of_one(repeats: str, left: list[str]) -> None:
    model = parse(f"""g (float[N,4,1,5] x) => (float[A,B,C,D] y) <int64[4] repeats = {{{repeats}}}> {{
      t = Tile (x, repeats)  y = Neg (t)
    }}""")
    alone = onnxfuse.optimize(model, only=["softmax"])
    assert ops(alone) == left
    assert_same_numbers(model, alone)


def test_repeats_that_are_computed_and_an_extent_that_is_open_stay() -> None:
    for graph in (
        "g (float[N,1] x, int64[2] r) => (float[A,B] y) { t = Tile (x, r)  y = Neg (t) }",
        "g (float[N,M] x) => (float[A,B] y) <int64[2] r = {1,3}> { t = Tile (x, r)  y = Neg (t) }",
    ):
        assert ops(onnxfuse.optimize(parse(graph), only=["softmax"])) == ["Tile", "Neg"]


def test_heads_that_are_repeated_by_a_tile_are_grouped_queries() -> None:
    """As torch's repeat_interleave is exported: the attention reads each key once."""
    made = onnxfuse.optimize(
        parse("""g (float16[2,8,3,16] q, float16[2,2,5,16] k, float16[2,2,5,16] v) => (float16[2,8,3,16] y)
        <int64[1] two = {2}, int64[5] repeats = {1,1,4,1,1}, int64[4] heads = {0,8,5,16}, float16 scale = {13312}> {
      k5 = Unsqueeze (k, two)  kr = Tile (k5, repeats)  k4 = Reshape (kr, heads)
      v5 = Unsqueeze (v, two)  vr = Tile (v5, repeats)  v4 = Reshape (vr, heads)
      kt = Transpose <perm = [0,1,3,2]> (k4)  m = MatMul (q, kt)  s = Mul (m, scale)
      p = Softmax <axis = -1> (s)  y = MatMul (p, v4)
    }""")
    )
    (attention,) = fused_ops(made).values()
    assert attention.rule == "attention"
    assert {"k", "v"} <= {v for n in made.graph.node if n.domain == "onnxfuse" for v in n.input}
