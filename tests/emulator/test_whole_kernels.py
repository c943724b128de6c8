"""Whole kernels, run by the host's compiler: indexing, tails, broadcasting, reductions, in-place runs."""

from collections.abc import Sequence

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BOOL, BRAIN, DOUBLE, FLOAT, HALF, INT32
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.memory_bound import schedule
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant
from onnxfuse.model.fused import FusedOp
from tests.emulator import emulate

H200 = Arch("sm_90a", 132)
# One multiprocessor with few threads: tensors of a few thousand elements are already "many waves".
SMALL = Arch("sm_90a", 1, 32)

CHAIN = "(x, b, c) => (y) { s = Add(x, b) t = Mul(s, c) u = Sigmoid(t) v = Mul(u, s) y = Relu(v) }"
LAYER_NORM = "(x, r, g, b) => (y, s) { s = Add(x, r) y = LayerNormalization <axis = -1> (s, g, b) }"
SOFTMAX = "(x, m) => (y) { s = Add(x, m) y = Softmax <axis = -1> (s) }"


def check(
    fused: FusedOp,
    shapes: Sequence[tuple[int, ...]],
    aligned: bool = True,
    arch: Arch = H200,
    tuning: Variant | None = None,
    seed: int = 0,
    over: int | None = None,
) -> LaunchPlan:
    rng = np.random.default_rng(seed)
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    plan = cuda.plan(fused, tuple(shapes), aligned, arch, tuning)
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
    "row shorter than a vector": [(4, 5, 3), (3,), (5, 1)],
    "crossing into the next row and plane": [(3, 2, 9), (2, 9), (3, 1, 1)],
    "middle broadcast": [(3, 5, 16), (3, 1, 16), (5, 1)],
    "no rows": [(0, 16), (16,), (0, 16)],
}


@pytest.mark.parametrize("shapes", POINTWISE_SHAPES.values(), ids=POINTWISE_SHAPES)
@pytest.mark.parametrize("aligned", [True, False])
def test_pointwise_reads_and_writes_just_the_right_elements(shapes: list[tuple[int, ...]], aligned: bool) -> None:
    """Every broadcast kind, tail and alignment gives the body's values, and nothing is written beside the output."""
    check(ops.op(CHAIN, (HALF,) * 3, (HALF,)), shapes, aligned)


@pytest.mark.parametrize("types", [(FLOAT,) * 3, (BRAIN,) * 3, (DOUBLE,) * 3])
@pytest.mark.parametrize("shapes", [[(5, 33), (33,), (5, 1)], [(40, 32), (32,), (40, 1)]])
def test_pointwise_element_types(types: tuple[int, int, int], shapes: list[tuple[int, ...]]) -> None:
    """All float types; with several vectors per thread, blocks that are not full and a tail."""
    check(ops.op(CHAIN, types, types[:1]), shapes, arch=SMALL)


def test_pointwise_several_vectors_per_thread() -> None:
    """A tensor of many waves: unrolled threads, a last block that is not full, and a tail."""
    tuning = PointwiseVariant(bytes_in_flight=64)
    plan = check(ops.op("(x) => (y) { y = Abs(x) }", (HALF,), (HALF,)), [(21013,)], arch=SMALL, tuning=tuning)
    assert "UNROLL = 4" in plan.kernel.text
    assert plan.grid == (3, 1, 1)


def test_pointwise_mixed_element_sizes() -> None:
    """A mask of one byte, float16 and float32 in one op: the width is counted in elements."""
    text = "(m, x, z) => (y, k) { w = Where(m, x, z) y = Cast <to = 1> (w) h = Abs(y) k = Greater(h, y) }"
    check(ops.op(text, (BOOL, HALF, HALF), (FLOAT, BOOL)), [(3, 37), (3, 37), (37,)])


def test_pointwise_output_smaller_than_the_op() -> None:
    """An output that depends on the broadcast inputs only has their shape, and is written once."""
    fused = ops.op("(x, b) => (y, c) { c = Neg(b) y = Add(x, c) }", (FLOAT, FLOAT), (FLOAT, FLOAT))
    for b in ((16,), (4, 1), (1,), (3, 1, 16)):
        check(fused, [(3, 4, 16), b])


def test_pointwise_integers_keep_their_types() -> None:
    check(ops.op("(a, b) => (y) { s = Mul(a, b) y = Sub(s, a) }", (INT32,) * 2, (INT32,)), [(7, 11), (11,)])


def test_pointwise_wide_index() -> None:
    """Above 2^31 elements the same template runs on 64-bit indices; forced here on a small tensor."""
    fused = ops.op(CHAIN, (HALF,) * 3, (HALF,))
    rng = np.random.default_rng(1)
    shapes = ((5, 33), (33,), (5, 1))
    inputs = [ops.random(rng, HALF, s) for s in shapes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnxfuse.cuda.planning.launch_plan.index_bits", lambda elements: 64)
        plan = cuda.plan(fused, shapes, True, H200)
    assert "using Index = unsigned long long" in plan.kernel.text
    ops.within_budget(fused, inputs, emulate.run(plan, inputs, [np.float16]))


def test_an_output_may_lie_over_an_input() -> None:
    check(ops.op(CHAIN, (HALF,) * 3, (HALF,)), [(5, 33), (33,), (5, 1)], over=0)
    text = "(x, g) => (y) { y = RMSNormalization <axis = -1> (x, g) }"
    for columns in (40, 49, 300, 1025, 33000):
        check(ops.op(text, (HALF, HALF), (HALF,), "row"), [(3, columns), (columns,)], over=0)


@pytest.mark.parametrize("columns", [1, 7, 8, 33, 64, 197, 768, 1025, 8200, 33001])
@pytest.mark.parametrize("aligned", [True, False])
def test_layer_norm_of_any_row_length(columns: int, aligned: bool) -> None:
    """Part of a warp, a warp, a block, two blocks at once, a block that walks; shifted or not: the body's values."""
    rows = 5 if columns <= 1025 else 2
    shapes = [(rows, columns), (rows, columns), (columns,), (columns,)]
    check(ops.op(LAYER_NORM, (HALF,) * 4, (HALF, HALF), "row"), shapes, aligned)


@pytest.mark.parametrize("types", [(FLOAT,) * 4, (BRAIN,) * 4, (DOUBLE,) * 4])
def test_layer_norm_element_types(types: tuple[int, int, int, int]) -> None:
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
def test_softmax_with_every_kind_of_mask(shapes: list[tuple[int, ...]]) -> None:
    check(ops.op(SOFTMAX, (HALF,) * 2, (HALF,), "row"), shapes)


@pytest.mark.parametrize("columns", [9, 33, 49, 77])
def test_shifted_rows_keep_to_themselves(columns: int) -> None:
    """Rows begin and end inside vectors: any number of rows, also in place; the same kernel for all of them."""
    softmax = ops.op("(x) => (y) { y = Softmax <axis = -1> (x) }", (HALF,), (HALF,), "row")
    for rows in (1, 2, 3, 35):
        plan = check(softmax, [(rows, columns)])
        check(softmax, [(rows, columns)], over=0)
    assert "SHIFTED = true" in plan.kernel.text


def test_shifted_rows_by_wide_index() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnxfuse.cuda.planning.launch_plan.index_bits", lambda elements: 64)
        plan = check(ops.op(SOFTMAX, (HALF,) * 2, (HALF,), "row"), [(2, 3, 197), (2, 1, 197)])
    assert "using Index = unsigned long long" in plan.kernel.text


def test_shifted_rows_of_mixed_element_sizes() -> None:
    """Vectors lie on the same elements of each dense operand, whatever their size."""
    text = """(k, x, m) => (y, t) { z = Where(k, x, m) c = Cast <to = 1> (z)
      y = Softmax <axis = -1> (c) t = Greater(x, m) }"""
    fused = ops.op(text, (BOOL, HALF, HALF), (FLOAT, BOOL), "row")
    check(fused, [(2, 3, 45), (2, 3, 45), (2, 1, 45)])


def test_an_epilogue_may_have_more_rows_than_the_reduction() -> None:
    """The one row is reduced again for each row of the result."""
    fused = ops.op("(x, e) => (y) { s = Softmax <axis = -1> (x) y = Add(s, e) }", (FLOAT,) * 2, (FLOAT,), "row")
    for x, e in (((1, 4), (5, 4)), ((4,), (5, 4)), ((1, 13), (2, 3, 13)), ((3, 1, 40), (2, 40))):
        check(fused, [x, e])


def test_reductions_over_several_axes_are_one_row() -> None:
    """A per-channel operand is broadcast along part of the row."""
    text = "(x, s) => (y) { z = Mul(x, s) y = LayerNormalization <axis = 1> (z, s) }"
    check(ops.op(text, (FLOAT,) * 2, (FLOAT,), "row"), [(3, 4, 6, 5), (4, 1, 1)])
    check(ops.op(text, (FLOAT,) * 2, (FLOAT,), "row"), [(3, 3, 5, 5), (3, 1, 1)])


def test_row_outputs_of_every_size() -> None:
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
    check(fused, [(3, 2, 41), (41,), (2, 1)])
    check(fused, [(3, 2, 300), (1, 300), (3, 1, 1)])


def test_layer_norm_gives_its_mean_and_inverse_deviation() -> None:
    """The optional outputs, one per row, in the stash type."""
    text = "(x, g, b) => (y, m, d) { y, m, d = LayerNormalization <axis = -1> (x, g, b) }"
    for columns in (40, 45):
        check(ops.op(text, (HALF,) * 3, (HALF, FLOAT, FLOAT), "row"), [(5, columns), (columns,), (columns,)])


def run(text: str, arrays: Sequence[np.ndarray], outputs: tuple[int, ...], template: str = "row") -> list[np.ndarray]:
    """Return the outputs of a float32 op that onnx.reference does not know."""
    fused = ops.op(text, (FLOAT,) * len(arrays), outputs, template)
    plan = cuda.plan(fused, tuple(a.shape for a in arrays), True, H200)
    return emulate.run(plan, list(arrays), [ops.NUMPY[t] for t in outputs])


def test_microsoft_norms() -> None:
    """Residual and bias are added first; the sum is the last output; the statistics are those of the sum."""
    rng = np.random.default_rng(3)
    x, skip = (ops.random(rng, FLOAT, (3, 45)) for _ in range(2))
    scale, shift, bias = (ops.random(rng, FLOAT, (45,)) for _ in range(3))
    total = (x + skip + bias).astype(np.float64)
    centred = total - total.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    root = np.sqrt((total**2).mean(-1, keepdims=True) + 1e-5)
    layer = "(x, s, g, b, c) => (y, m, d, t) { y, m, d, t = com.microsoft.SkipLayerNormalization <epsilon = 1e-5> "
    simple = "(x, s, g, c) => (y, t) { y, m, d, t = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-5> "
    for got, exact in (
        *zip(
            run(layer + "(x, s, g, b, c) }", (x, skip, scale, shift, bias), (FLOAT,) * 4),
            (centred / deviation * scale + shift, total.mean(-1, keepdims=True), 1 / deviation, total),
            strict=True,
        ),
        *zip(
            run(simple + "(x, s, g, c) }", (x, skip, scale, bias), (FLOAT,) * 2),
            (total / root * scale, total),
            strict=True,
        ),
    ):
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-6)


def test_swish_and_cast_like() -> None:
    """x sigmoid(alpha x); CastLike takes the type of its second operand, not its values."""
    x = np.linspace(-6, 6, 31, dtype=np.float32)
    (swish,) = run("(x) => (y) { y = Swish <alpha = 1.5> (x) }", (x,), (FLOAT,), "pointwise")
    np.testing.assert_allclose(swish, x / (1 + np.exp(-1.5 * x.astype(np.float64))), rtol=1e-5, atol=1e-7)
    like = "(x) => (y) { i = Constant <value = int32 {7}> () y = CastLike(x, i) }"
    (whole,) = run(like, (x,), (INT32,), "pointwise")
    np.testing.assert_array_equal(whole, x.astype(np.int32))


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"])
def test_every_reduction(kind: str) -> None:
    """Also on rows that do not fill the threads: absent lanes add nothing."""
    text = f"(x) => (y) {{ a = Constant <value_ints = [-1]> () p = Abs(x) y = Reduce{kind} (p, a) }}"
    for columns in (1, 13, 50):
        check(ops.op(text, (FLOAT,), (FLOAT,), "row"), [(3, columns)], seed=2)


def test_integer_reductions() -> None:
    text = "(x) => (y, z) { a = Constant <value_ints = [-1]> () y = ReduceSum (x, a) z = ReduceMin (x, a) }"
    check(ops.op(text, (INT32,), (INT32, INT32), "row"), [(3, 77)])


ERF_GELU = [
    "d = Div(s, r) e = Erf(d) g = Add(e, o) m = Mul(s, g) y = Mul(m, h)",
    "d = Div(s, r) e = Erf(d) g = Add(o, e) m = Mul(h, s) y = Mul(g, m)",
    "d = Mul(k, s) e = Erf(d) g = Add(e, o) m = Mul(g, h) y = Mul(m, s)",
]
OTHER_ERF = [
    "d = Div(r, s) e = Erf(d) g = Add(e, o) m = Mul(s, g) y = Mul(m, h)",
    "d = Mul(n, s) e = Erf(d) g = Add(e, o) m = Mul(s, g) y = Mul(m, h)",
    "d = Div(b, r) e = Erf(d) g = Add(e, o) m = Mul(s, g) y = Mul(m, h)",
]


@pytest.mark.parametrize(("text", "one"), [*((t, True) for t in ERF_GELU), *((t, False) for t in OTHER_ERF)])
def test_gelu_spelled_by_erf_is_one_operation(text: str, one: bool) -> None:
    """In any order of its factors, with the model's own constants; what only looks like it stays as it is written."""
    constants = {"r": 1.4140625, "k": 0.70703125, "n": -0.70703125, "o": 1.0, "h": 0.5}
    bits = {name: int(np.float16(v).view(np.uint16)) for name, v in constants.items()}
    lines = " ".join(f"{name} = Constant <value = float16 {{{b}}}> ()" for name, b in bits.items())
    fused = ops.op(f"(x, b) => (y) {{ {lines} s = Add(x, b) {text} }}", (HALF, HALF), (HALF,))
    assert any(getattr(v, "op", "").startswith("erf_gelu") for v in schedule.program(fused).values) is one
    check(fused, [(33, 64), (64,)])
