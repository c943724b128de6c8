"""Caches beside attention: what a model gives out of its keys and values is written by the kernel that reads it."""

import pytest

from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.templates.attention.body import parse_op
from onnxfuse.fusion.region.realize import realize
from onnxfuse.model.fused import fused_ops
from onnxfuse.support.errors import NoPlanError
from tests.support.small import assert_same_numbers, fuses, optimize, parse

H200 = Arch("sm_90a", 132)
ATTENTION = "Unsqueeze Expand Reshape Unsqueeze Expand Reshape Transpose MatMul Div Softmax MatMul Transpose Reshape"


def step(
    queries: int | str = 1, past: int | str = 5, more: str = "", results: str = "", out: str = "ka, va, ", axis: int = 2
) -> str:
    """Return a step of decoding: four heads on two of keys and values, behind what was kept of them."""
    given = {
        name: f"float16[N,2,{n},16] {name}" for name, n in (("k", past), ("kn", queries), ("v", past), ("vn", queries))
    }
    outputs = "".join(f"float16[N,2,L,16] {name.strip()}, " for name in out.split(",") if name.strip())
    return f"""g (float16[N,4,{queries},16] q, {", ".join(given.values())})
      => ({outputs}{results}float16[N,{queries},64] y)
    <int64[1] two = {{2}}, int64[5] times = {{1,1,2,1,1}}, int64[4] four = {{0,4,-1,16}}, int64[3] flat = {{0,-1,64}},
     float16 root = {{17408}}> {{
      ka = Concat <axis = {axis}> (k, kn)  va = Concat <axis = {axis}> (v, vn)
      k5 = Unsqueeze (ka, two)  kr = Expand (k5, times)  kw = Reshape (kr, four)
      v5 = Unsqueeze (va, two)  vr = Expand (v5, times)  vw = Reshape (vr, four)
      kt = Transpose <perm = [0,1,3,2]> (kw)  m = MatMul (q, kt)  s = Div (m, root)  p = Softmax <axis = -1> (s)
      c = MatMul (p, vw)  ct = Transpose <perm = [0,2,1,3]> (c)  y = Reshape (ct, flat) {more}
    }}"""


@pytest.mark.parametrize(("past", "axis"), [(5, 2), ("P", -2)])
def test_the_concats_join_and_their_values_come_out(past: int | str, axis: int) -> None:
    """The kernel says itself that it takes caches, and the op is made anew from its body."""
    assert fuses(step(past=past, axis=axis)) == ["{Concat Concat " + ATTENTION + "}"]
    made, _ = optimize(parse(step(past=past, axis=axis)))
    ((name, op),) = fused_ops(made).items()
    assert op.template == "attention"
    parts = parse_op(op)
    assert parts.k.cache is not None
    assert parts.v.cache is not None
    assert (parts.k.group, parts.v.group, parts.heads) == (2, 2, 4)
    form = realize(made, {name: op})[name]
    assert form.runs
    assert form.form is not None
    assert cuda.fits(op, form.shapes[0], H200) is None


def test_a_kernel_for_groups_repeats_nothing() -> None:
    """Without caches, too: the keys are read where they lie."""
    made, _ = optimize(parse(step(out="")))
    op = next(op for op in fused_ops(made).values() if op.rule == "attention")
    assert op.template == "attention"
    assert parse_op(op).k.group == 2


EXPORTED = """g (float16[N,4,1,16] q, float16[N,2,P,16] k, float16[N,2,1,16] kn, float16[N,2,P,16] v,
      float16[N,2,1,16] vn, float16[N,1,1,C] mask) => (float16[N,2,K,16] ka, float16[N,2,V,16] va, float16[N,1,64] y)
    <int64[1] two = {2}, int64[5] times = {1,1,2,1,1}, int64[3] flat = {0,-1,64}, int64[1] heads = {4},
     int64[1] size = {16}, int64[1] zero = {0}, int64 axis = {2}, float16 root = {17408}> {
      ka = Concat <axis = 2> (k, kn)  va = Concat <axis = 2> (v, vn)
      batch = Shape <start = 0, end = 1> (q)
      kl = Shape (ka)  kn1 = Gather (kl, axis)  kn2 = Unsqueeze (kn1, zero)
      vl = Shape (va)  vn1 = Gather (vl, axis)  vn2 = Unsqueeze (vn1, zero)
      k4 = Concat <axis = 0> (batch, heads, kn2, size)  v4 = Concat <axis = 0> (batch, heads, vn2, size)
      k5 = Unsqueeze (ka, two)  kr = Expand (k5, times)  kw = Reshape (kr, k4)
      v5 = Unsqueeze (va, two)  vr = Expand (v5, times)  vw = Reshape (vr, v4)
      kt = Transpose <perm = [0,1,3,2]> (kw)  m = MatMul (q, kt)  s = Div (m, root)  b = Add (s, mask)
      p = Softmax <axis = -1> (b)  c = MatMul (p, vw)  ct = Transpose <perm = [0,2,1,3]> (c)  y = Reshape (ct, flat)
    }"""
"""As the tracing exporter writes a step of transformers: the length of a cache is asked of the cache that has grown,
for the target of the repeated heads, and the mask has a length by a name of its own."""


def test_caches_grow_where_their_length_is_asked_and_a_mask_has_its_own() -> None:
    (op,) = (op for op in fuses(EXPORTED) if "Softmax" in op)
    assert op == "{Concat Concat " + ATTENTION.replace("Softmax", "Add Softmax") + "}"
    model = parse(EXPORTED)
    made, _ = optimize(parse(EXPORTED))
    assert_same_numbers(model, made)


@pytest.mark.parametrize(
    "beside",
    [
        step(queries=17), step(queries="S"),
        step(out="ka, "),
        step(more="z = Relu (ka)", results="float16[N,2,L,16] z, "),
    ],
    ids=["many queries", "any number of queries", "values that stay inside", "keys that are read elsewhere"],
)  # fmt: skip
def test_concats_stay_outside(beside: str) -> None:
    assert not any(op.startswith("{Concat Concat") for op in fuses(beside))


def test_the_general_kernel_takes_the_caches_too() -> None:
    """Whatever the shapes are that the kernel does not take."""
    made, _ = optimize(parse(step()))
    (op,) = fused_ops(made).values()
    shapes = (*((3, 2, n, 16) for n in (5, 17, 5, 17)), (3, 4, 17, 16))
    with pytest.raises(NoPlanError, match="expected 1 to 16"):
        cuda.plan(op, shapes, True, H200)
    assert cuda.general(op, shapes, H200).output_shapes[:2] == ((3, 2, 22, 16),) * 2


def test_the_length_of_a_value_that_is_put_together_of_one_stays() -> None:
    """Nothing is added up, and nothing breaks."""
    text = """g (float16[N,P,4] k) => (float16[N,L,4] y, int64 n) <int64 axis = {1}> {
      y = Concat <axis = 1> (k)  s = Shape (y)  n = Gather (s, axis) }"""
    made, _ = optimize(parse(text))
    assert_same_numbers(parse(text), made)


def test_a_cache_of_three_parts_is_as_long_as_all_of_them() -> None:
    """Its length is read of the parts, of one of them as the number that it is."""
    text = """g (float16[N,P,4] a, float16[N,2,4] b, float16[N,C,4] c) => (float16[N,L,4] y, float16[M,2] z)
    <int64[1] two = {2}> {
      y = Concat <axis = -2> (a, b, c)  n = Shape <start = 1, end = 2> (y)  t = Concat <axis = 0> (n, two)
      o = ConstantOfShape <value = float16[1] {1}> (t)  z = Identity (o) }"""
    made, _ = optimize(parse(text))
    assert not any(n.op_type == "Shape" and n.input[0] == "y" for n in made.graph.node)
    assert_same_numbers(parse(text), made)


def test_the_exporters_name_of_a_length_is_the_one_that_a_concat_gives() -> None:
    """Torch calls it by the expression that computed it: past + 1."""
    model = parse(EXPORTED)
    mask, (keys, values) = model.graph.input[5], model.graph.output[:2]
    for value, axis, name in ((keys, 2, "P + 1"), (values, 2, "1 + P"), (mask, 3, "(P + 1)")):
        value.type.tensor_type.shape.dim[axis].dim_param = name
    made, _ = optimize(model)
    assert [op.template for op in fused_ops(made).values()] == ["attention"]
    assert [d.dim_param for d in made.graph.output[0].type.tensor_type.shape.dim if d.dim_param] == ["N", "P + 1"]
