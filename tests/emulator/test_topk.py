"""TopK along rows, run by the host's compiler: against Python's own sort, with ties, NaN, and infinities."""

import re

import numpy as np
import pytest
from onnx import TensorProto

from bench.cases import ops
from bench.cases.ops import BOOL, BRAIN, DOUBLE, FLOAT, HALF, INT32, INT64
from bench.cases.rows import topk
from onnxfuse import cuda
from onnxfuse.cuda import LaunchPlan
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.arch import H200, SUPPORTED, Arch
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.topk.variant import TopKVariant
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError
from tests.emulator import emulate

TYPES = (
    HALF, BRAIN, FLOAT, DOUBLE, INT32, INT64, TensorProto.INT8, TensorProto.INT16, TensorProto.UINT8,
    TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
)  # fmt: skip
SMALLEST = "<largest = 0, sorted = 0>"


def first(x: np.ndarray, k: int, largest: bool) -> np.ndarray:
    """Return the indices of the first k of each row by Python's sort: NaN above all numbers, then the lower index."""

    def of_row(row: np.ndarray) -> list[int]:
        values = [v if v == v else np.inf for v in row.tolist()]
        sign = -1 if largest else 1
        return sorted(range(len(row)), key=lambda i: (sign * values[i], sign * int(row[i] != row[i]), i))[:k]

    return np.array([of_row(row) for row in x.reshape(-1, x.shape[-1])]).reshape(*x.shape[:-1], k)


def check(
    op: FusedOp,
    x: np.ndarray,
    k: int,
    largest: bool = True,
    aligned: bool = True,
    tuning: Variant | None = None,
    arch: Arch = H200,
) -> LaunchPlan:
    """Run the op of a TopK alone; return its plan."""
    plan = cuda.plan(op, (x.shape,), aligned, arch, tuning)
    values, indices = emulate.run(plan, [x], [x.dtype, np.int64], aligned)
    expected = first(x, k, largest)
    np.testing.assert_array_equal(indices, expected)
    same(values, np.take_along_axis(x, expected, -1))
    return plan


def same(values: np.ndarray, expected: np.ndarray) -> None:
    """Assert that values are those that were there: -0 is not 0, whatever NaN it is."""
    number = expected == expected
    np.testing.assert_array_equal(values == values, number)
    assert values[number].tobytes() == expected[number].tobytes()


def numbers(dtype: int, shape: tuple[int, ...], ties: bool = False) -> np.ndarray:
    """Return values of both signs, many of them equal with `ties`."""
    made = ops.random(np.random.default_rng(sum(shape)), dtype, shape)
    return (made.astype(np.float64) // 2).astype(made.dtype) if ties else made


@pytest.mark.parametrize(("largest", "attributes"), [(True, ""), (False, SMALLEST), (True, "<sorted = 0>")])
@pytest.mark.parametrize(
    ("k", "shape"),
    [(1, (3, 1)), (1, (2, 3, 197)), (2, (300, 8)), (5, (7, 33)), (8, (40, 64)), (31, (2, 31)), (32, (3, 1025))],
    ids=str,
)
@pytest.mark.parametrize("aligned", [True, False])
def test_rows_of_any_length(k: int, shape: tuple[int, ...], largest: bool, attributes: str, aligned: bool) -> None:
    """Part of a warp, several warps per row, several rows per block; k of k."""
    check(topk(k, FLOAT, attributes), numbers(FLOAT, shape), k, largest, aligned)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("largest", [True, False])
def test_element_types(dtype: int, largest: bool) -> None:
    """The extremes of the type among them; of equal values the first ones."""
    x = numbers(dtype, (3, 200), ties=True)
    facts = np.iinfo(x.dtype) if np.issubdtype(x.dtype, np.integer) else None
    x[0, [7, 90]], x[1, [3, 199]] = (facts.max, facts.min) if facts else (np.inf, -np.inf)
    check(topk(9, dtype, "" if largest else SMALLEST), x, 9, largest)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT, DOUBLE])
def test_nan_infinities_and_zeros(dtype: int, largest: bool) -> None:
    """NaN of either sign is above infinity; -0 and 0 are equal, and leave as they came."""
    x = numbers(dtype, (4, 40))
    x[0, [3, 17, 30]] = np.nan
    x[0, 31] = -x[0, 3]
    x[1] = 0
    x[1, ::3] = -x[1, ::3]
    x[2] = np.nan
    x[3, 1:] = -np.inf if largest else np.inf
    check(topk(6, dtype, "" if largest else SMALLEST), x, 6, largest)


@pytest.mark.parametrize("order", ["ascending", "descending", "constant"])
def test_no_order_of_the_input_is_wrong(order: str) -> None:
    """Each element ahead of all before it, none, and none but the first."""
    x = {"ascending": np.arange(3000), "descending": -np.arange(3000), "constant": np.full(3000, 7)}[order]
    check(topk(20, FLOAT), x.astype(np.float32).reshape(1, -1), 20)


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
def test_warps_that_share_a_row(warps: int) -> None:
    """One to eight of them, in blocks that have no row for all warps."""
    plan = check(topk(10, HALF), numbers(HALF, (3, 1500), ties=True), 10, tuning=TopKVariant(topk_warps=warps))
    assert f"ROW_THREADS = {32 * warps};" in plan.kernel.text


@pytest.mark.parametrize("splits", [2, 32])
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE])
def test_blocks_that_share_a_row(splits: int, dtype: int) -> None:
    """Two launches; the last parts of a row may have no elements."""
    plan = check(topk(32, dtype), numbers(dtype, (2, 5000), ties=True), 32, tuning=TopKVariant(topk_splits=splits))
    assert plan.grid[0] == 2 * splits
    assert [p.block[0] for p in plan.then] == [32 * splits]


def test_a_long_row_is_shared_by_blocks() -> None:
    """As the logits of a language model are."""
    plan = check(topk(4, FLOAT), numbers(FLOAT, (1, 50257)), 4)
    assert plan.then
    assert plan.grid[0] > 1


def test_wide_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 2^31 elements the same text runs on 64-bit indices; forced here on small tensors."""
    monkeypatch.setattr("onnxfuse.cuda.planning.launch_plan.index_bits", lambda elements: 64)
    for tuning in (None, TopKVariant(topk_splits=2)):
        plan = check(topk(7, FLOAT, SMALLEST), numbers(FLOAT, (3, 400), ties=True), 7, False, tuning=tuning)
        assert "using Index = unsigned long long" in plan.kernel.text


@pytest.mark.parametrize("masks", [(4, 1, 40), (40,), (1, 3, 1), (1,), (4, 3, 40)], ids=str)
@pytest.mark.parametrize("splits", [0, 2])
def test_pointwise_work_before(masks: tuple[int, ...], splits: int) -> None:
    """A scale and a mask that is broadcast; what is computed on the way may be an output, too."""
    text = """(x, m) => (s, i, v, t) { k = Constant <value_ints = [5]> () c = Constant <value = float {0.5}> ()
      l = Constant <value = float {-10000}> () s = Mul (x, c) t = Where (m, s, l) v, i = TopK (t, k) }"""
    fused = ops.op(text, (FLOAT, BOOL), (FLOAT, INT64, FLOAT, FLOAT), "topk")
    inputs = [numbers(FLOAT, (4, 3, 40)), ops.random(np.random.default_rng(1), BOOL, masks)]
    plan = cuda.plan(fused, ((4, 3, 40), masks), True, H200, TopKVariant(topk_splits=splits))
    got = emulate.run(plan, inputs, [np.float32, np.int64, np.float32, np.float32])
    masked = np.where(inputs[1], inputs[0] * np.float32(0.5), np.float32(-10000))
    expected = first(masked, 5, True)
    for result, wanted in zip(
        got, (inputs[0] * np.float32(0.5), expected, np.take_along_axis(masked, expected, -1), masked), strict=True
    ):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("output", ["v", "i"])
def test_one_output_of_the_two(output: str) -> None:
    """The other one is not written."""
    text = f"(x) => ({output}) {{ k = Constant <value_ints = [3]> () v, i = TopK (x, k) }}"
    fused = ops.op(text, (FLOAT,), (FLOAT if output == "v" else INT64,), "topk")
    x = numbers(FLOAT, (5, 70))
    expected = first(x, 3, True)
    (got,) = emulate.run(cuda.plan(fused, (x.shape,), True, H200), [x], [ops.NUMPY[fused.outputs[0]]])
    np.testing.assert_array_equal(got, expected if output == "i" else np.take_along_axis(x, expected, -1))


@pytest.mark.parametrize("arch", SUPPORTED, ids=lambda arch: arch.name)
@pytest.mark.parametrize("dtype", [HALF, DOUBLE])
def test_kernels_compile_without_spills(dtype: int, arch: Arch) -> None:
    """A warp for each row, blocks that share one; with a mask before."""
    text = "(x, m) => (v, i) { k = Constant <value_ints = [32]> () a = Where (m, x, x) v, i = TopK (a, k) }"
    fused = ops.op(text, (dtype, BOOL), (dtype, INT64), "topk")
    for shape in ((4096, 64), (8, 250_000)):
        plan = cuda.plan(fused, (shape, shape[-1:]), True, arch)
        for launch in (plan, *plan.then):
            _, log = nvrtc.build(launch.kernel, arch, ("-Xptxas=-v",))
            assert set(re.findall(r"(\d+) bytes spill stores", log)) == {"0"}


def test_without_rows_nothing_is_launched() -> None:
    """The outputs have their shapes."""
    plan = cuda.plan(topk(3, FLOAT), ((0, 4),), True, H200)
    assert (plan.grid[0], plan.output_shapes) == (0, ((0, 3), (0, 3)))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("v = Relu (x)", "0 TopKs in the body"),
        ("v, i = TopK (x, k) w, j = TopK (v, k)", "2 TopKs in the body"),
        ("w, i = TopK (x, k) v = Relu (w)", "work on what TopK has chosen"),
        ("l = Constant <value_ints = [33]> () v, i = TopK (x, l)", "TopK of (33,) elements, expected 1 to 32"),
        ("v, i = TopK (x, x)", "TopK whose input 1 is not a constant"),
    ],
)
def test_other_bodies_are_refused(body: str, reason: str) -> None:
    """With the reason in one line."""
    text = f"(x) => (v) {{ k = Constant <value_ints = [2]> () {body} }}"
    assert reason in str(cuda.supports(ops.op(text, (FLOAT,), (FLOAT,), "topk")))


def test_shapes_without_a_plan_are_refused() -> None:
    """More than a row has, another axis than the last one."""
    with pytest.raises(KernelError, match="3 elements of rows of 2"):
        cuda.plan(topk(3, FLOAT), ((5, 2),), True, H200)
    with pytest.raises(KernelError, match="along axis 1 of 3, expected the last one"):
        cuda.plan(topk(3, FLOAT, "<axis = 1>"), ((5, 7, 9),), True, H200)
    check(topk(3, FLOAT, "<axis = 1>"), numbers(FLOAT, (5, 7)), 3)
