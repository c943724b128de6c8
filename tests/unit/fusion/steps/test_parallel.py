"""RoPE of queries and of fewer keys is one op where a graph keeps a cache."""

import onnxfuse
from onnxfuse.model.fused import fused_ops
from tests.support.small import assert_same_numbers, ops, optimize, parse

ROPE = """{x}_left = Slice ({x}, zero, half, last)
  {x}_right = Slice ({x}, half, end, last)
  {x}_minus = Neg ({x}_right)
  {x}_turned = Concat <axis = -1> ({x}_minus, {x}_left)
  {x}_straight = Mul ({x}, cos)
  {x}_across = Mul ({x}_turned, sin)
  {y} = Add ({x}_straight, {x}_across)
"""
NUMBERS = """int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}"""
STEP = (
    "g (float[N,4,S,8] q, float[N,2,S,8] k, float[N,1,S,8] cos, float[N,1,S,8] sin, float[N,2,P,8] past) => "
    f"(float[N,4,S,8] a, float[N,2,S,8] b, float[N,2,T,8] present) <{NUMBERS}> {{\n"
    f"{ROPE.format(x='q', y='a')}{ROPE.format(x='k', y='b')}PRESENT }}"
)
GROWS = "present = Concat <axis = 2> (past, k)"
HALF_TURN = "{Slice Slice Neg Concat Mul Mul Add}"


def test_queries_and_keys_share_a_launch() -> None:
    """The numbers are the same, undone they are nodes again, and nothing happens twice."""
    model = parse(STEP.replace("PRESENT", GROWS))
    made, report = optimize(model)
    assert report.by_rule()["parallel_movement"] == 1
    (op,) = (o for o in fused_ops(made).values() if o.template == "parallel")
    assert len(op.outputs) == 2
    assert_same_numbers(model, made)
    assert sorted(ops(onnxfuse.unfuse(made))) == sorted(ops(model))
    again, _ = optimize(made)
    assert again == made


def test_where_no_cache_grows_each_has_its_launch() -> None:
    made, report = optimize(parse(STEP.replace("PRESENT", "present = Exp (past)")))
    assert report.by_rule()["parallel_movement"] == 0
    assert ops(made).count(HALF_TURN) == 2


def test_one_that_reads_the_other_waits_for_it() -> None:
    """Through a node outside, too: one launch would need its own result."""
    waits = STEP.replace("PRESENT", GROWS).replace("float[N,2,S,8] k, ", "float[N,2,4] w, ")
    waits = waits.replace("k_left =", "heads = MatMul (w, a_flat) k = Reshape (heads, to)\n  k_left =").replace(
        "heads = MatMul", "a_flat = Reshape (a, flat) heads = MatMul"
    )
    waits = waits.replace(NUMBERS, NUMBERS + ", int64[3] flat = {0,4,-1}, int64[4] to = {0,2,-1,8}")
    made, report = optimize(parse(waits))
    assert report.by_rule()["parallel_movement"] == 0
    assert ops(made).count(HALF_TURN) == 2


def test_an_op_that_only_turns_is_named_by_that() -> None:
    """The Transpose of an image beside a RoPE that reads it, too."""
    text = """g (float[N,3,H,8] x, float[N,3,H,8] cos, float[N,2,S,8] k, float[N,2,P,8] past)
    => (float[N,H,8,3] y, float[N,3,H,8] z, float[N,2,T,8] present)
    <int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}> {
      present = Concat <axis = 2> (past, k)
      y = Transpose <perm = [0,2,3,1]> (x)
      l = Slice (x, zero, half, last)  r = Slice (x, half, end, last)  m = Neg (r)
      t = Concat <axis = -1> (m, l)  a = Mul (x, cos)  z = Add (a, t)
    }"""
    model = parse(text)
    made, _ = optimize(model)
    assert_same_numbers(model, made)
