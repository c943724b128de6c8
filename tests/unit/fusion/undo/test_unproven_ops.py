"""What only the exporter declares of values on the way, a session does not believe."""

import onnx

from onnxfuse.api.optimize.optimizing import optimize
from onnxfuse.fusion.region.realize import realize
from onnxfuse.model.fused import fused_ops
from tests.support.small import parse

HEADS = """
  h32 = Constant <value = float {0.25}> () half = Cast <to = 10> (h32) flat = Constant <value = int64[3] {0, 0, 64}> ()
  kept = Constant <value = int64[4] {0, 0, 4, 16}> ()
  k4 = Reshape (k, kept) v4 = Reshape (v, kept) qh = Transpose <perm = [0, 2, 1, 3]> (q4)
  kt = Transpose <perm = [0, 2, 3, 1]> (k4) vh = Transpose <perm = [0, 2, 1, 3]> (v4)
  s = MatMul (qh, kt) scaled = Mul (s, half) w = Softmax <axis = -1> (scaled) o = MatMul (w, vh)
  ot = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape (ot, flat) }"""

OTHERS = "float16[batch,total,64] k, float16[batch,total,64] v"

CUT = f"""g (float16[all,1,64] x, int64[1] n, {OTHERS}) => (float16[batch,1,64] y) <float16[batch,1,64] q> {{
  zero = Constant <value = int64[1] {{0}}> () q = Slice (x, zero, n, zero) q4 = Reshape (q, kept) {HEADS}"""
"""Nothing but the declaration tells that as many queries are cut off as there are keys."""

PLACED = f"""g (float16[batch,1,64] x, float16[512,64] table, int64[1] past, int64[1] next, {OTHERS})
  => (float16[batch,1,64] y) <float16[1,64] rows, float16[batch,1,64] q> {{
  rows = Slice (table, past, next) q = Add (x, rows)
  left = Constant <value = int64[4] {{-1, 1, 4, 16}}> () q4 = Reshape (q, left) {HEADS}"""
"""Nothing but the declaration tells that one row is cut off, so that -1 is the batch."""


def test_a_rule_is_left_out_where_no_session_would_find_what_it_asks_for() -> None:
    """The nodes come back, other rules take them, the report says why, and a second run changes nothing."""
    made = optimize(parse(CUT))
    assert {op.rule for op in fused_ops(made.model).values()} == {"softmax"}
    assert [n.op_type for n in made.model.graph.node].count("MatMul") == 2
    assert any("the rule 'attention' left unfused" in note and "dim B of kt is batch" in note for note in made.notes)
    assert not any(a.rule == "attention" for a in made.report.applied)
    assert optimize(made.model).model == made.model


def test_what_the_declarations_tell_of_a_reshape_is_written_into_it() -> None:
    """The attention is made, and the file alone says what its rule asks for."""
    made = optimize(parse(PLACED))
    ops = fused_ops(made.model)
    assert {op.rule for op in ops.values()} >= {"attention"}
    bare = onnx.ModelProto()
    bare.CopyFrom(made.model)
    del bare.graph.value_info[:]
    attention = {name: op for name, op in ops.items() if op.rule == "attention"}
    assert all(found.form is not None for found in realize(bare, attention).values())
    assert made.notes == []


def test_what_a_branch_with_fused_ops_computes_is_known_to_a_session() -> None:
    """Fused ops in the branches of an If are inlined, too, where the type of its output has to be found anew."""
    text = """g (bool b, float[2,4,23] x) => (float[2,46,4] y) <float[4,4,1] w = {%s}> {
      v = If (b) <then_branch = one () => (s) { e = Neg (x) s = Sin (e) },
                  else_branch = two () => (t) { f = Abs (x) t = Cos (f) }>
      c = ConvTranspose <output_padding = [1], strides = [2]> (v, w) y = Transpose <perm = [0,2,1]> (c) }"""
    model = parse(text % ",".join(["0.5"] * 16))
    for attribute in model.graph.node[0].attribute:
        for output in attribute.g.output:
            output.ClearField("type")
    made = optimize(model)
    assert sorted(op.rule for op in fused_ops(made.model).values()) == ["nhwc_conv", "pointwise", "pointwise"]
    assert made.notes == []
    assert optimize(made.model).model == made.model
