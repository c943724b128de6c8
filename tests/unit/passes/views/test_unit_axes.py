"""Axes of extent 1 that are taken out and put in again are left alone; what says something stays."""

import pytest

import onnxfuse
from tests.support.small import assert_same_numbers, ops, parse

WEIGHTS = "int64[1] one = {1}, int64[1] two = {2}, int64[1] flat = {-1}, int64[4] whole = {-1,1,1,4}"


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ("a = Squeeze (x, one)  u = Unsqueeze (a, two)  y = Neg (u)", ["Neg"]),
        ("a = Squeeze (x, one)  b = Unsqueeze (a, two)  u = Unsqueeze (b, one)  y = Neg (u)", ["Unsqueeze", "Neg"]),
        ("a = Squeeze (x, one)  b = Squeeze (a, one)  c = Unsqueeze (b, one)  u = Unsqueeze (c, one)  y = Neg (u)",
         ["Neg"]),
        # The first one is read elsewhere.
        ("a = Squeeze (x, one)  u = Unsqueeze (a, two)  n = Neg (u)  f = Neg (a)  g = Unsqueeze (f, one) "
         " y = Add (n, g)",
         ["Squeeze", "Neg", "Neg", "Unsqueeze", "Add"]),
        ("a = Reshape (x, flat)  b = Reshape (a, whole)  y = Neg (b)", ["Reshape", "Reshape", "Neg"]),
    ],
)  # fmt: skip
def test_what_has_its_shape_back(nodes: str, left: list[str]) -> None:
    model = parse(
        f"g (float[N,1,1,4] x) => (float y) <{WEIGHTS}> {{ {nodes.replace('y =', 'z =')} y = ReduceSum (z) }}"
    )
    alone = onnxfuse.optimize(model, only=["softmax"])
    assert sorted(ops(alone)) == sorted([*left, "ReduceSum"])
    assert_same_numbers(model, alone)


def test_an_extent_that_nobody_knows_is_not_the_same() -> None:
    model = parse("""g (float[N,M] x, int64[1] out, int64[1] back) => (float y) {
      a = Unsqueeze (x, out)  b = Squeeze (a, back)  z = Neg (b)  y = ReduceSum (z)
    }""")
    assert ops(onnxfuse.optimize(model, only=["softmax"])) == ["Unsqueeze", "Squeeze", "Neg", "ReduceSum"]


def reshaped(nodes: str, rows: str = "5") -> list[str]:
    """Return the operators left of what makes y of x [N,rows,4,16]; what it computes must stay the same."""
    model = parse(f"""g (float[N,{rows},4,16] x) => (float y)
    <int64[1] one = {{1}}, int64[1] three = {{3}}, int64[1] four = {{4}}, int64[2] ends = {{0,1}},
     int64[3] rows = {{-1,5,16}}, int64[5] apart = {{-1,4,5,16,1}}, int64[1] left = {{-1}}, int64[2] head = {{4,16}}> {{
      {nodes} y = ReduceSum (z) }}""")
    alone = onnxfuse.optimize(model, only=["softmax"])
    assert_same_numbers(model, alone)
    return ops(alone)


def test_an_axis_that_is_put_in_is_not_turned_for_a_reshape() -> None:
    """As an Einsum's letters are that one factor alone has."""
    turned = "u = Unsqueeze (x, {})  t = Transpose <perm = [{}]> (u)  r = Reshape (t, rows)  z = Neg (r)"
    for axis, order in (("three", "0,2,1,3,4"), ("one", "0,3,1,2,4")):
        assert reshaped(turned.format(axis, order)) == ["Transpose", "Reshape", "Neg", "ReduceSum"]


def test_an_axis_that_others_read_stays() -> None:
    nodes = "u = Unsqueeze (x, one)  t = Transpose <perm = [0,3,1,2,4]> (u)  r = Reshape (t, rows)  a = Neg (r)"
    read = f"{nodes}  b = Neg (t)  c = Reshape (b, rows)  z = Add (a, c)"
    assert reshaped(read) == ["Unsqueeze", "Transpose", "Reshape", "Neg", "Neg", "Reshape", "Add", "ReduceSum"]


def test_an_axis_is_taken_out_by_the_reshape_before_it() -> None:
    nodes = "r = Reshape (x, apart)  s = Squeeze (r, four)  z = Neg (s)"
    assert reshaped(nodes) == ["Reshape", "Neg", "ReduceSum"]


def test_a_target_that_is_computed_says_one_axis_less() -> None:
    nodes = """shape = Shape (x)  n = Gather (shape, ends)  f = Flatten <axis = 2> (x)
      target = Concat <axis = 0> (n, head, one)  r = Reshape (f, target)  s = Squeeze (r, four)  z = Neg (s)"""
    left = reshaped(nodes, "S")
    assert "Squeeze" not in left
    assert left[-3:] == ["Reshape", "Neg", "ReduceSum"]


def test_a_target_that_copies_an_extent_stays_where_it_counts() -> None:
    """A 0 is the operand's extent at its place: one axis less, and it is another's."""
    nodes = """shape = Shape (x)  rest = Gather (shape, behind)  copied = Concat <axis = 0> (one, zero, rest)
      u = Unsqueeze (x, first)  r = Reshape (u, copied)  z = Neg (r)"""
    model = parse(f"""g (float[N,S,4,16] x) => (float[A,B,C,D,E] y)
    <int64[1] one = {{1}}, int64[1] zero = {{0}}, int64[1] first = {{0}}, int64[3] behind = {{1,2,3}}> {{
      {nodes.replace("z =", "y =")} }}""")
    alone = onnxfuse.optimize(model, only=["softmax"])
    assert_same_numbers(model, alone)


def test_a_reshape_to_its_own_shape_goes() -> None:
    """Where the types tell so by names."""
    nodes = """e = Exp (x)  shape = Shape (x)  n = Gather (shape, ends)
      target = Concat <axis = 0> (n, left, one)  r = Reshape (e, {})  z = Neg (r)"""
    own = nodes.replace("left, one", "head").format("target")
    assert reshaped(own, "S") == ["Exp", "Neg", "ReduceSum"]
    assert "Reshape" in reshaped(nodes.format("target"), "S")


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_scalar_with_axes_put_in_has_none_to_transpose(axes: int) -> None:
    """An Unsqueeze of a scalar before a Transpose and a Reshape: the graph is optimized, to the same numbers."""
    at, perm = list(range(axes)), list(range(axes))[::-1]
    model = parse(
        f"""g (float x) => (float[1,1] y) <int64[{axes}] a = {{{", ".join(map(str, at))}}}, int64[2] t = {{1, -1}}> {{
        u = Unsqueeze (x, a)
        v = Transpose <perm = {perm}> (u)
        y = Reshape (v, t)
    }}""",
        17,
    )
    assert_same_numbers(model, onnxfuse.optimize(model))
