"""Whole kernels, run by the host's compiler: indexing, tails, broadcasting, reductions, in-place runs."""

import numpy as np
import pytest

from onnxfuse import kernels
from onnxfuse.kernels import Arch, Tuning
from tests.kernels import emulate, ops
from tests.kernels.ops import BOOL, BRAIN, DOUBLE, FLOAT, HALF, INT32

H200 = Arch("sm_90a", 132)
# One multiprocessor with few threads: tensors of a few thousand elements are already "many waves".
SMALL = Arch("sm_90a", 1, 32)

CHAIN = "(x, b, c) => (y) { s = Add(x, b) t = Mul(s, c) u = Sigmoid(t) v = Mul(u, s) y = Relu(v) }"
LAYER_NORM = "(x, r, g, b) => (y, s) { s = Add(x, r) y = LayerNormalization <axis = -1> (s, g, b) }"
SOFTMAX = "(x, m) => (y) { s = Add(x, m) y = Softmax <axis = -1> (s) }"


def check(fused, shapes, aligned=True, arch=H200, tuning=None, seed=0, over=None):
    rng = np.random.default_rng(seed)
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    plan = kernels.plan(fused, tuple(shapes), aligned, arch, tuning or Tuning())
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned, over)
    ops.within_budget(fused, inputs, got)
    return plan


POINTWISE_SHAPES = {
    "all as big as the output": [(2, 3, 8)] * 3,
    "bias along the inner dimension": [(5, 16), (16,), (1, 16)],
    "bias with odd rows": [(5, 33), (33,), (5, 1)],
    "per channel": [(2, 3, 4, 8), (3, 1, 1), (2, 3, 1, 1)],
    "per channel, odd plane": [(2, 3, 7, 7), (1, 3, 1, 1), (2, 3, 1, 1)],
    "outer product": [(1, 9), (7, 1), ()],
    "one element": [(), (), ()],
    "one element, rank 3": [(1, 1, 1), (), (1,)],
    "31": [(31,), (31,), (1,)],
    "1025": [(1025,), (1,), (1025,)],
    "197 by 197": [(3, 197), (197,), (3, 197)],
    "middle broadcast": [(3, 5, 16), (3, 1, 16), (5, 1)],
    "no rows": [(0, 16), (16,), (0, 16)],
}


@pytest.mark.parametrize("shapes", POINTWISE_SHAPES.values(), ids=POINTWISE_SHAPES)
@pytest.mark.parametrize("aligned", [True, False])
def test_pointwise_reads_and_writes_just_the_right_elements(shapes, aligned):
    """Every broadcast kind, tail and alignment gives the body's values, and nothing is written beside the output."""
    check(ops.op(CHAIN, (HALF,) * 3, (HALF,)), shapes, aligned)


@pytest.mark.parametrize("types", [(FLOAT,) * 3, (BRAIN,) * 3, (DOUBLE,) * 3])
@pytest.mark.parametrize("shapes", [[(5, 33), (33,), (5, 1)], [(40, 32), (32,), (40, 1)]])
def test_pointwise_element_types(types, shapes):
    """All float types; with several vectors per thread, blocks that are not full and a tail."""
    check(ops.op(CHAIN, types, types[:1]), shapes, arch=SMALL)


def test_pointwise_several_vectors_per_thread():
    """A tensor of many waves: unrolled threads, a last block that is not full, and a tail."""
    plan = check(ops.op("(x) => (y) { y = Abs(x) }", (HALF,), (HALF,)), [(21013,)], arch=SMALL)
    assert "UNROLL = 4" in plan.kernel.text
    assert plan.grid == (3, 1, 1)


def test_pointwise_mixed_element_sizes():
    """A mask of one byte, float16 and float32 in one op: the width is counted in elements."""
    text = "(m, x, z) => (y, k) { w = Where(m, x, z) y = Cast <to = 1> (w) h = Abs(y) k = Greater(h, y) }"
    check(ops.op(text, (BOOL, HALF, HALF), (FLOAT, BOOL)), [(3, 37), (3, 37), (37,)])


def test_pointwise_output_smaller_than_the_op():
    """An output that depends on the broadcast inputs only has their shape, and is written once."""
    fused = ops.op("(x, b) => (y, c) { c = Neg(b) y = Add(x, c) }", (FLOAT, FLOAT), (FLOAT, FLOAT))
    for b in ((16,), (4, 1), (1,), (3, 1, 16)):
        check(fused, [(3, 4, 16), b])


def test_pointwise_integers_keep_their_types():
    check(ops.op("(a, b) => (y) { s = Mul(a, b) y = Sub(s, a) }", (INT32,) * 2, (INT32,)), [(7, 11), (11,)])


def test_pointwise_wide_index():
    """Above 2^31 elements the same template runs on 64-bit indices; forced here on a small tensor."""
    fused = ops.op(CHAIN, (HALF,) * 3, (HALF,))
    rng = np.random.default_rng(1)
    shapes = ((5, 33), (33,), (5, 1))
    inputs = [ops.random(rng, HALF, s) for s in shapes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnxfuse.kernels.plans.index_bits", lambda elements: 64)
        plan = kernels.plan(fused, shapes, True, H200)
    assert "using Index = unsigned long long" in plan.kernel.text
    ops.within_budget(fused, inputs, emulate.run(plan, inputs, [np.float16]))


def test_an_output_may_lie_over_an_input():
    check(ops.op(CHAIN, (HALF,) * 3, (HALF,)), [(5, 33), (33,), (5, 1)], over=0)
    text = "(x, g) => (y) { y = RMSNormalization <axis = -1> (x, g) }"
    for columns in (40, 300, 20000):
        check(ops.op(text, (HALF, HALF), (HALF,), "row"), [(3, columns), (columns,)], over=0)


@pytest.mark.parametrize("columns", [1, 2, 7, 8, 31, 64, 197, 768, 1025, 4096, 17000])
@pytest.mark.parametrize("aligned", [True, False])
def test_layer_norm_of_any_row_length(columns, aligned):
    """Part of a warp, a warp, a block, a block that walks: each gives the body's values, with odd numbers of rows."""
    rows = 5 if columns <= 1025 else 2
    shapes = [(rows, columns), (rows, columns), (columns,), (columns,)]
    check(ops.op(LAYER_NORM, (HALF,) * 4, (HALF, HALF), "row"), shapes, aligned)


@pytest.mark.parametrize("types", [(FLOAT,) * 4, (BRAIN,) * 4, (DOUBLE,) * 4])
def test_layer_norm_element_types(types):
    check(ops.op(LAYER_NORM, types, types[:2], "row"), [(3, 2, 100), (3, 2, 100), (100,), (100,)])


SOFTMAX_SHAPES = {
    "mask per batch": [(2, 3, 5, 64), (2, 1, 1, 64)],
    "mask per pair, odd": [(2, 3, 5, 17), (5, 17)],
    "row scalars": [(4, 40), (4, 1)],
    "one number": [(4, 40), ()],
    "outer broadcast of the row itself": [(1, 40), (3, 1)],
    "no rows": [(0, 40), (40,)],
}


@pytest.mark.parametrize("shapes", SOFTMAX_SHAPES.values(), ids=SOFTMAX_SHAPES)
def test_softmax_with_every_kind_of_mask(shapes):
    check(ops.op(SOFTMAX, (HALF,) * 2, (HALF,), "row"), shapes)


def test_reductions_over_several_axes_are_one_row():
    """A per-channel operand is broadcast along part of the row."""
    text = "(x, s) => (y) { z = Mul(x, s) y = LayerNormalization <axis = 1> (z, s) }"
    check(ops.op(text, (FLOAT,) * 2, (FLOAT,), "row"), [(3, 4, 6, 5), (4, 1, 1)])


def test_row_outputs_of_every_size():
    """A reduction as an output (kept or dropped axis), the row itself, and values as small as their inputs."""
    text = """(x, g, t) => (m, d, y, h, u) {
      m = ReduceMax <keepdims = 1> (x, k) k = Constant <value_ints = [-1]> ()
      d = ReduceSum <keepdims = 0> (x, k) y = Sub(x, m) h = Neg(g) u = Abs(t) }"""
    text = text.replace("m = ReduceMax <keepdims = 1> (x, k) k = Constant", "k = Constant").replace(
        "d = ReduceSum", "m = ReduceMax <keepdims = 1> (x, k) d = ReduceSum"
    )
    fused = ops.op(text, (FLOAT,) * 3, (FLOAT,) * 5, "row")
    # h and u do not reach an output of full size, but are as big as g and t.
    check(fused, [(3, 2, 40), (40,), (2, 1)])
    check(fused, [(3, 2, 3000), (1, 3000), (3, 1, 1)])


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"])
def test_every_reduction(kind):
    """Also on rows that do not fill the threads: absent lanes add nothing."""
    text = f"(x) => (y) {{ a = Constant <value_ints = [-1]> () p = Abs(x) y = Reduce{kind} (p, a) }}"
    for columns in (1, 13, 50):
        check(ops.op(text, (FLOAT,), (FLOAT,), "row"), [(3, columns)], seed=2)


def test_integer_reductions():
    text = "(x) => (y, z) { a = Constant <value_ints = [-1]> () y = ReduceSum (x, a) z = ReduceMin (x, a) }"
    check(ops.op(text, (INT32,), (INT32, INT32), "row"), [(3, 77)])
