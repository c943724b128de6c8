"""Extents that are counted in int32 are extents: what reads them sees whose they are."""

import onnx
import pytest

import onnxfuse
from tests.support.small import assert_same_numbers, ops, parse

WEIGHTS = """int64[1] first = {0}, int64[1] second = {1}, int64[1] two = {2}, int64 zero = {0}, int32[1] four = {4},
  int32[1] left = {-1}, int32[2] tail = {4,-1}"""


def optimized(nodes: str) -> onnx.ModelProto:
    model = parse(f"g (float[N,S,8] x, int32[2] given) => (float y) <{WEIGHTS}> {{ {nodes} y = ReduceSum (z) }}", 18)
    alone = onnxfuse.optimize(model, only=["softmax"])
    assert_same_numbers(model, alone)
    return alone


@pytest.mark.parametrize(
    "taken",
    [
        "n = Slice (c, first, second)  t = Concat <axis = 0> (n, tail)",
        "s = Gather (c, zero)  n = Unsqueeze (s, first)  t = Concat <axis = 0> (n, tail)",
        "h = Slice (c, first, two)  n = ReduceProd (h)  t = Concat <axis = 0> (n, tail)",
        "n = Slice (c, first, second)  m = Mul (n, four)  t = Concat <axis = 0> (m, left)",
        "n = Slice (c, first, second)  m = Add (n, n)  t = Concat <axis = 0> (m, left)",
    ],
)
def test_what_is_computed_of_extents_is_computed_in_int64(taken: str) -> None:
    """The casts are gone, and so is the Shape of a value on the way."""
    made = optimized(f"e = Exp (x)  shape = Shape (e)  c = Cast <to = 6> (shape)  {taken}  w = Cast <to = 7> (t) "
                     " z = Reshape (e, w)")  # fmt: skip
    assert "Cast" not in ops(made)
    assert [list(n.input) for n in made.graph.node if n.op_type == "Shape"] in ([["x"]], [])


def test_numbers_that_a_caller_gives_stay_int32() -> None:
    made = optimized("n = Slice (given, first, second)  t = Concat <axis = 0> (n, left)  w = Cast <to = 7> (t) "
                     " z = Reshape (x, w)")  # fmt: skip
    assert "Cast" in ops(made)


def test_what_else_reads_an_extent_in_int32_has_it() -> None:
    made = optimized(
        "shape = Shape (x)  c = Cast <to = 6> (shape)  n = Slice (c, first, second)  f = BitwiseNot (n)"
        "  g = Cast <to = 1> (f)  z = Mul (x, g)"
    )
    assert [n.attribute[0].i for n in made.graph.node if n.op_type == "Cast"] == [6, 1]
