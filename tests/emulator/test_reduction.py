"""Whole kernels that reduce, run by the host's compiler: axes, families, hard values, empty tensors."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BRAIN, DOUBLE, FLOAT, HALF, INT32, INT64
from bench.cases.rows import TEMPLATES, axes
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.templates.reduction.variant import RowVariant
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200, SMALL, check


def checked(fused: FusedOp, inputs: Sequence[np.ndarray], aligned: bool = True) -> list[np.ndarray]:
    """Run the op on these very values."""
    plan = cuda.plan(fused, tuple(x.shape for x in inputs), aligned, H200)
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned)
    ops.within_budget(fused, list(inputs), got)
    return got


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_families(name: str, dtype: int) -> None:
    """The body's values; each element written once, nothing read beside the inputs."""
    family = TEMPLATES[name]
    assert cuda.supports(family.op(dtype)) is None
    check(family.op(dtype), family.small)


@pytest.mark.parametrize("name", ["layer norm of NCHW", "group norm + silu", "batch statistics", "sum over the batch"])
def test_families_off_the_boundaries_of_memory(name: str) -> None:
    check(TEMPLATES[name].op(HALF), TEMPLATES[name].small, aligned=False)


@pytest.mark.parametrize("name", ["group norm + silu", "softmax over channels", "pool NHWC", "arg max over channels"])
@pytest.mark.parametrize("dtype", [BRAIN, DOUBLE])
def test_families_in_other_types(name: str, dtype: int) -> None:
    check(TEMPLATES[name].op(dtype), TEMPLATES[name].small, arch=SMALL)


SUBSETS = [s for n in (1, 2, 3) for s in itertools.combinations(range(4), n)]


@pytest.mark.parametrize("over", SUBSETS, ids=str)
def test_every_set_of_axes(over: tuple[int, ...]) -> None:
    """Row, column or a mix: with the axes kept, gone, and what is left of each element."""
    text = f"""(x, w) => (k, s, y) {{ {axes(*over)} z = Mul (x, w) k = ReduceMax (z, a)
      s = ReduceSum <keepdims = 0> (z, a) y = Sub (z, k) }}"""
    check(ops.op(text, (FLOAT,) * 2, (FLOAT,) * 3, "row"), [(3, 4, 5, 8), (4, 1, 8)])


def test_all_axes_at_once() -> None:
    """Whole numbers: whatever the order of the sum, it is exact."""
    fused = ops.op("(x) => (y) { y = ReduceSum <keepdims = 0> (x) }", (FLOAT,), (FLOAT,), "row")
    x = np.random.default_rng(0).integers(-9, 9, (3, 4, 5, 7)).astype(np.float32)
    (got,) = checked(fused, [x])
    assert got == x.sum()


MASKED_MEAN = f"""(x, m) => (y) {{ {axes(1)} s = ReduceSum <keepdims = 0> (x, a) n = ReduceSum <keepdims = 0> (m, a)
  y = Div (s, n) }}"""


@pytest.mark.parametrize("arch", [H200, SMALL], ids=["large", "small"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 5, 24), (5, 5, 24)), ((5, 5, 24), (5, 5, 1)), ((3, 5, 24), (3, 5, 24)), ((3, 5, 24), (3, 5, 1)),
        ((8, 8, 8), (8, 8, 8)), ((1, 7, 24), (1, 7, 24)), ((7, 1, 24), (7, 1, 1)), ((1, 1, 1), (1, 1, 1)),
        ((7, 9, 1), (7, 9, 1)), ((3, 5, 24), (1, 5, 24)), ((3, 5, 24), (3, 1, 24)), ((3, 1, 24), (3, 5, 1)),
    ],
    ids=str,
)  # fmt: skip
def test_sums_of_values_that_never_meet(shapes: tuple[tuple[int, int, int], tuple[int, int, int]], arch: Arch) -> None:
    """Each has axes of its own, whatever their sizes: batch as long as the sequence, ones, one of them broadcast."""
    fused = ops.op(MASKED_MEAN, (FLOAT,) * 2, (FLOAT,), "row")
    rng = np.random.default_rng(0)
    x, m = (rng.uniform(0.5, 2, s).astype(np.float32) for s in shapes)
    plan = cuda.plan(fused, shapes, True, arch)
    (got,) = emulate.run(plan, [x, m], [np.float32])
    np.testing.assert_allclose(got, x.sum(1) / m.sum(1), rtol=1e-5)


def test_sums_of_values_of_other_shapes() -> None:
    """[3, 12] beside [3, 4, 3]: as many terms, and the first output is one of the values itself."""
    text = f"""(x, m) => (t, y) {{ {axes(1)} b = Constant <value_ints = [1, 2]> () t = Neg (m)
      s = ReduceSum <keepdims = 0> (x, a) n = ReduceMax <keepdims = 0> (m, b) y = Sub (s, n) }}"""
    fused = ops.op(text, (FLOAT,) * 2, (FLOAT,) * 2, "row")
    check(fused, [(3, 12), (3, 4, 3)])


@pytest.mark.parametrize("sizes", [(3, 5, 5), (3, 5, 7), (5, 5, 5)])
def test_sums_along_two_axes_of_one_value_have_no_kernel(sizes: tuple[int, int, int]) -> None:
    """Rows and columns of a table of pairs are not walked along together, as many as they may be."""
    batch, n, m = sizes
    text = f"""(x, z) => (y) {{ {axes(1)} c = Constant <value_ints = [2]> () p = Mul (x, z)
      s = ReduceSum <keepdims = 0> (p, a) t = ReduceSum <keepdims = 0> (p, c) u = ReduceMax <keepdims = 0> (s, a)
      y = ReduceMax <keepdims = 0> (t, a) }}"""
    fused = ops.op(text.replace("=> (y)", "=> (u, y)"), (FLOAT,) * 2, (FLOAT,) * 2, "row")
    with pytest.raises(KernelError, match="reductions over axes"):
        cuda.plan(fused, ((batch, n, 1), (batch, 1, m)), True, H200)


@pytest.mark.parametrize("shape", [(2, 3000, 8), (3000, 8), (1, 700, 200)])
def test_a_long_axis_is_shared_by_blocks_or_walked_along(shape: tuple[int, ...]) -> None:
    """Sums across neighbours: the threads of a column, the blocks of a cluster, several rounds."""
    fused = ops.op(f"(x) => (y) {{ {axes(-2)} y = ReduceSum (x, a) }}", (HALF,), (HALF,), "row")
    check(fused, [shape])
    check(ops.op("(x) => (y) { y = Softmax <axis = -2> (x) }", (HALF,), (HALF,), "row"), [shape])


def test_a_walk_across_neighbours() -> None:
    """Too much for the registers of a cluster: what is needed again is read again."""
    fused = ops.op("(x) => (y) { y = Softmax <axis = 0> (x) }", (FLOAT,), (FLOAT,), "row")
    plan = check(fused, [(9000, 8)], arch=cuda.Arch("sm_80", 4))
    assert "ITEMS = 0" in plan.kernel.text


@pytest.mark.parametrize("columns", [1025, 20000, 70000])
def test_few_long_rows_are_shared_by_a_cluster(columns: int) -> None:
    plan = check(TEMPLATES["log softmax"].op(HALF), [(2, columns)])
    assert ("CLUSTER = 1;" in plan.kernel.text) == (columns == 1025)


def test_without_clusters_before_hopper() -> None:
    plan = check(TEMPLATES["log softmax"].op(HALF), [(2, 70000)], arch=cuda.Arch("sm_89", 128))
    assert "CLUSTER = 1;" in plan.kernel.text


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_of_equals_the_first_or_the_last_counts(axis: int, name: str, last: int) -> None:
    """However the axis is shared out; NaN is beyond every number."""
    fused = ops.op(
        f"(x) => (y) {{ y = {name} <axis = {axis}, keepdims = 0, select_last_index = {last}> (x) }}", (FLOAT,),
        (INT64,), "row",
    )  # fmt: skip
    x = np.random.default_rng(0).integers(0, 3, (6, 130, 40)).astype(np.float32)
    (got,) = checked_positions(fused, x)
    best = x.max(axis, keepdims=True) if name == "ArgMax" else x.min(axis, keepdims=True)
    equal = x == best
    wanted = equal.argmax(axis) if not last else x.shape[axis] - 1 - np.flip(equal, axis).argmax(axis)
    np.testing.assert_array_equal(got, wanted)
    x[2, 7, 3] = np.nan
    (got,) = checked_positions(fused, x)
    assert got[(7, 3) if axis == 0 else (2, 3) if axis == 1 else (2, 7)] == (2, 7, 3)[axis]


def checked_positions(fused: FusedOp, x: np.ndarray) -> list[np.ndarray]:
    plan = cuda.plan(fused, (x.shape,), True, H200)
    return emulate.run(plan, [x], [np.int64])


@pytest.mark.parametrize("axis", [0, 1])
def test_integers_are_summed_in_their_type(axis: int) -> None:
    fused = ops.op(f"(x) => (y) {{ {axes(axis)} y = ReduceSum (x, a) }}", (INT32,), (INT32,), "row")
    x = np.full((70, 33), 2**30, np.int32)
    (got,) = emulate.run(cuda.plan(fused, (x.shape,), True, H200), [x], [np.int32])
    np.testing.assert_array_equal(got, x.sum(axis, keepdims=True, dtype=np.int32))


# ---- values that are hard


def values(kind: str, shape: tuple[int, ...], dtype: int) -> np.ndarray:
    """Return rows of one kind."""
    to, rng = ops.NUMPY[dtype], np.random.default_rng(3)
    noise = rng.standard_normal(shape)
    # Squares of large values, and the sums of these, are finite in float32, which computes float16 too.
    large = 30 if dtype == HALF else 1e15
    if kind == "constant":
        return np.broadcast_to(rng.standard_normal((shape[0], *(1,) * (len(shape) - 1))) * 3, shape).astype(to)
    if kind == "large":
        return (noise * large).astype(to)
    if kind == "large and constant":
        return np.full(shape, large, to)
    if kind == "denormal":
        return (noise * 2.0**-24).astype(to) if dtype == HALF else (noise * 2.0**-130).astype(to)
    if kind == "far from 0":
        # A row has a sum in float16: else the computation that sets the budget is NaN, and allows nothing.
        far = min(1000, 2**15 * shape[0] / math.prod(shape)) if dtype == HALF else 1000
        return (noise + far).astype(to)
    raise AssertionError(kind)


KINDS = ["constant", "large", "large and constant", "denormal", "far from 0"]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_hard_values_stay_in_the_budget(name: str, kind: str, dtype: int) -> None:
    """At most twice the unfused error against float64, and NaN and infinity where the truth has them."""
    family = TEMPLATES[name]
    if kind == "large" and name == "log softmax" and dtype == FLOAT:
        pytest.skip("onnx.reference takes the logarithm of the softmax, which is 0 there")
    if kind == "large and constant" and "group" in name and dtype == FLOAT:
        pytest.skip("onnx's function body subtracts squares of 1e30, and takes the root of what is below 0")
    if kind == "denormal" and "l2" in name:
        pytest.skip("x / 0: the truth in float64 has no zero to divide by")
    fused = family.op(dtype)
    rng = np.random.default_rng(1)
    x = values(kind, family.small[0], dtype)
    rest = [ops.random(rng, t, s) for t, s in zip(fused.inputs[1:], family.small[1:], strict=True)]
    checked(fused, [x, *rest])


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_rows_that_are_masked_as_a_whole(dtype: int) -> None:
    """By a finite number: equal weights, as the body has it. By minus infinity: NaN, as the body has it."""
    family = TEMPLATES["scale + bool mask + softmax"]
    keep = np.ones((2, 1, 1, 40), bool)
    keep[0] = False
    x = ops.random(np.random.default_rng(0), dtype, (2, 3, 5, 40))
    (got,) = checked(family.op(dtype), [x, keep])
    np.testing.assert_allclose(got[0].astype(np.float64), 1 / 40, rtol=1e-3)
    fused = ops.op("(x, m) => (y) { s = Add (x, m) y = Softmax <axis = -1> (s) }", (dtype,) * 2, (dtype,), "row")
    mask = np.zeros((5, 1, 40), ops.NUMPY[dtype])
    mask[2] = -np.inf
    mask[3, 0, 5:] = -np.inf
    (got,) = checked(fused, [x[0, 0][None], mask])
    assert np.isnan(got[2]).all()
    assert (got[3, :, 5:] == 0).all()


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_empty_batch_gives_what_the_body_gives(name: str) -> None:
    """Nothing is launched for nothing; sums over the batch are 0, means and greatest values as the body has them."""
    if "embeddings" in name:
        pytest.skip("its first input is a table; test_rows_of_a_table has what it looks up")
    if name == "group norm as instance norm + silu":
        pytest.skip("its Reshape to [0, 32, -1] leaves the -1 open where there are no elements")
    family = TEMPLATES[name]
    fused = family.op(HALF)
    batch = family.small[0][0]
    rank = len(family.small[0])
    shapes = tuple((0, *s[1:]) if len(s) == rank and s[0] == batch else s for s in family.small)
    inputs = [np.asarray(ops.random(np.random.default_rng(0), t, s)) for t, s in zip(fused.inputs, shapes, strict=True)]
    plan = cuda.plan(fused, shapes, True, H200)
    sizes = [math.prod(s) for s in plan.output_shapes]
    assert (plan.grid[0] == 0) == (not any(sizes))
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs])
    for result, size in zip(got, sizes, strict=True):
        assert result.size == size
    if any(sizes) and "statistics" not in name:
        ops.within_budget(fused, inputs, got)


def test_no_pixels() -> None:
    """An axis in the middle without elements."""
    shapes = ((2, 12, 0, 8), (12, 1, 1), (12, 1, 1))
    plan = cuda.plan(TEMPLATES["layer norm of NCHW"].op(HALF), shapes, True, H200)
    assert plan.grid[0] == 0
    assert plan.output_shapes == (shapes[0],)


@pytest.mark.parametrize(("over", "shape"), [(0, (0, 40)), (1, (5, 0)), (1, (3, 0, 8))])
def test_the_sum_of_nothing_is_0(over: int, shape: tuple[int, ...]) -> None:
    """A batch without images has a bias gradient of zeros."""
    fused = ops.op(f"(x) => (y) {{ {axes(over)} y = ReduceSum <keepdims = 0> (x, a) }}", (HALF,), (HALF,), "row")
    (got,) = checked(fused, [np.zeros(shape, np.float16)])
    assert got.size
    assert (got == 0).all()


# ---- what one space can hold


def test_a_group_of_channels_is_one_row() -> None:
    """[2, 320, 64, 64] as 32 groups: 64 rows of 40960 neighbours, the weights by channel inside of them."""
    family = TEMPLATES["group norm of 320 channels + silu"]
    plan = cuda.plan(family.op(HALF), ((2, 320, 64, 64), (320,), (320,)), True, H200)
    assert plan.output_shapes == ((2, 320, 64, 64),)
    assert plan.grid[0] * plan.block[0] > 64 * 1024


def test_weights_by_channel_are_read_once_per_vector() -> None:
    """Where a plane is made of whole vectors."""
    plan = check(TEMPLATES["group norm + silu"].op(HALF), [(2, 12, 4, 8), (12,), (12,)])
    assert plan.kernel.text.count("load_spread(row.") == 2


def test_transposes_that_cancel_leave_a_norm_across_neighbours() -> None:
    """Channels-last LayerNormalization between two transposes reads and writes NCHW once."""
    text = """(x, g, b) => (y) { t = Transpose <perm = [0, 2, 3, 1]> (x) n = LayerNormalization (t, g, b)
      y = Transpose <perm = [0, 3, 1, 2]> (n) }"""
    check(ops.op(text, (HALF,) * 3, (HALF,), "row"), [(2, 12, 7, 8), (12,), (12,)])


def test_a_transposition_that_stays_is_read_or_written_so() -> None:
    """Rows lie where the operands have them: element by element here, in runs where neighbours stay neighbours."""
    fused = ops.op(f"(x) => (y) {{ {axes(-1)} t = Transpose (x) y = ReduceMax (t, a) }}", (FLOAT,), (FLOAT,), "row")
    check(fused, [(3, 5)])
    check(ops.op("(x) => (y) { t = Transpose (x) y = Softmax (t) }", (FLOAT,), (FLOAT,), "row"), [(3, 5)])
    check(ops.op("(x) => (y) { s = Softmax (x) y = Transpose (s) }", (HALF,), (HALF,), "row"), [(9, 40)])


def test_axes_that_do_not_divide_each_other_are_refused() -> None:
    text = f"""(x) => (y) {{ s = Constant <value_ints = [4, 6]> () {axes(-1)} r = Reshape (x, s) m = ReduceMax (r, a)
      d = Sub (r, m) b = Shape (x) y = Reshape (d, b) }}"""
    fused = ops.op(text, (FLOAT,), (FLOAT,), "row")
    check(fused, [(2, 2, 6)])
    with pytest.raises(KernelError, match="do not divide each other"):
        cuda.plan(fused, ((3, 8),), True, H200)


def test_a_value_beside_its_own_transpose_is_refused() -> None:
    """Its axes would have to be one."""
    text = f"(x) => (y) {{ {axes(-1)} t = Transpose (x) s = Add (x, t) y = ReduceMax (s, a) }}"
    with pytest.raises(KernelError, match="meets itself"):
        cuda.plan(ops.op(text, (FLOAT,), (FLOAT,), "row"), ((5, 5),), True, H200)


def test_a_sum_without_its_axis_beside_the_whole_is_refused() -> None:
    """[5] beside [5, 5] lies along the columns, though it was summed along them."""
    text = f"(x) => (y) {{ {axes(-1)} s = ReduceSum <keepdims = 0> (x, a) y = Add (x, s) }}"
    with pytest.raises(KernelError, match="meets itself"):
        cuda.plan(ops.op(text, (FLOAT,), (FLOAT,), "row"), ((5, 5),), True, H200)


def test_tuning_of_columns() -> None:
    """Threads of a block by the plan's constant."""
    family = TEMPLATES["sum over the batch"]
    for threads in (128, 256, 512):
        check(family.op(HALF), [(1330, 40)], tuning=RowVariant(column_threads=threads))


def test_a_number_that_names_no_row_gives_zeros() -> None:
    """As ONNX Runtime's Gather on CUDA, which does not stop the run either; nothing beside the table is read."""
    text = f"(w, i) => (y) {{ {axes(-1)} u = Gather (w, i) y = ReduceSum (u, a) }}"
    fused = ops.op(text, (FLOAT, INT64), (FLOAT,), "row")
    table = np.arange(1, 25, dtype=np.float32).reshape(3, 8)
    numbers = np.array([0, 2, 3, -3, -4, 2**31, -(2**40)], np.int64)
    plan = cuda.plan(fused, (table.shape, numbers.shape), True, H200)
    (got,) = emulate.run(plan, [table, numbers], [np.float32], True)
    total = table.sum(axis=1)
    np.testing.assert_array_equal(got.ravel(), [total[0], total[2], 0, total[0], 0, 0, 0])


@pytest.mark.parametrize(
    ("table", "numbers"), [((6, 70000), (2,)), ((7, 3, 40), (2, 2)), ((200, 40), ()), ((9, 40), (1, 1))]
)
def test_rows_of_a_table(table: tuple[int, ...], numbers: tuple[int, ...]) -> None:
    """Longer than registers; rows of several axes of which one is reduced; a single number."""
    fused = ops.op(
        "(w, i, g) => (y) { u = Gather (w, i) y = LayerNormalization (u, g) }", (HALF, INT64, HALF), (HALF,), "row"
    )
    rng = np.random.default_rng(0)
    inputs: list[np.ndarray] = [
        rng.standard_normal(table).astype(np.float16),
        np.array(rng.integers(-table[0], table[0], numbers)),
        rng.standard_normal(table[-1:]).astype(np.float16),
    ]
    checked(fused, inputs)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{ n = Add (i, i) u = Gather (w, n) y = Softmax (u) }", "numbers computed inside"),
        ("{ n = Neg (w) u = Gather (n, i) y = Softmax (u) }", "a computed table"),
        ("{ u = Gather (w, i) v = Add (u, w) y = Softmax (v) }", "a table that is read in two ways"),
        ("{ u = Gather <axis = 1> (w, i) y = Softmax (u) }", "along another axis than the first one"),
    ],
)
def test_lookups_that_no_kernel_does(text: str, reason: str) -> None:
    assert reason in (cuda.supports(ops.op("(w, i) => (y) " + text, (FLOAT, INT64), (FLOAT,), "row")) or "")
    assert cuda.supports(ops.op("(w, i) => (y) { u = Gather (w, i) y = Relu (u) }", (FLOAT, INT64), (FLOAT,)))


@pytest.mark.parametrize("dtype", [HALF, FLOAT, INT32])
@pytest.mark.parametrize("shape", [(20000, 16), (2, 9001, 24), (4099, 3)])
def test_blocks_that_share_an_axis_meet_in_scratch_memory(shape: tuple[int, ...], dtype: int) -> None:
    """Sum, greatest and its position; what lies along the axis is written by each block."""
    text = f"""(x) => (s, m, p, y) {{ {axes(-2)} s = ReduceSum <keepdims = 0> (x, a) m = ReduceMax (x, a)
      p = ArgMax <axis = -2> (x) y = Neg (x) }}"""
    fused = ops.op(text, (dtype,), (dtype, dtype, INT64, dtype), "row")
    plan = cuda.plan(fused, (shape,), True, H200)
    assert plan.scratch_bytes
    x = np.random.default_rng(0).integers(-40, 40, shape).astype(ops.NUMPY[dtype])
    total, most, place, negative = emulate.run(plan, [x], [ops.NUMPY[t] for t in fused.outputs])
    np.testing.assert_array_equal(negative, -x)
    np.testing.assert_array_equal(most, x.max(-2, keepdims=True))
    np.testing.assert_array_equal(place, x.argmax(-2, keepdims=True))
    # Whole numbers: sums of less than 2^24 are exact in float32.
    np.testing.assert_array_equal(total, x.sum(-2, dtype=np.float64).astype(total.dtype))


def test_another_length_of_the_shared_axis_is_the_same_kernel() -> None:
    op = TEMPLATES["sum over the batch"].op(HALF)
    plans = [cuda.plan(op, ((n, 1024),), True, H200) for n in (30000, 40000, 65536)]
    assert len({p.kernel for p in plans}) == 1
    assert all(p.scratch_bytes for p in plans)


def test_many_reductions_at_once_fit_the_shared_memory() -> None:
    """Twelve greatest values of twelve inputs, in one round."""
    names = [f"x{i}" for i in range(12)]
    work = " ".join(f"m{i} = ReduceMax (x{i}, a)" for i in range(12))
    fused = ops.op(
        f"({', '.join(names)}) => ({', '.join(f'm{i}' for i in range(12))}) {{ {axes(0)} {work} }}",
        (FLOAT,) * 12,
        (FLOAT,) * 12,
        "row",
    )
    check(fused, [(40, 512)] * 12)
