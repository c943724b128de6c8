"""The attention kernel for few queries on a real GPU, through CuPy alone: blocks that share keys against float64."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.attentions import Case, within_budget
from bench.cases.ops import BRAIN, FLOAT, HALF
from bench.kernels.launching import launcher
from onnxfuse import cuda
from onnxfuse.cuda.templates.attention import few
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from tests.gpu.test_kernels import DeviceBuffer, _gpu, launch
from tests.gpu.test_short_attention import check

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]


@pytest.mark.parametrize("any_length", [False, True])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("keys", [1, 100, 128, 129, 1000, 1024, 4099])
@pytest.mark.parametrize("batch", [1, 8])
def test_a_step_of_decoding(batch: int, keys: int, dtype: int, any_length: bool) -> None:
    check(Case(batch, 16, 1, keys, 128, dtype, heads_first="kv", group=4), any_length=any_length)


@pytest.mark.parametrize("queries", [1, 5, 16])
@pytest.mark.parametrize("group", [1, 3, 12])
@pytest.mark.parametrize("bias", ["", "key", "query"])
def test_groups_masks_and_more_queries(queries: int, group: int, bias: str) -> None:
    added = {"key": (2, 1, 1, 700), "query": (2, 12, queries, 700)}.get(bias)
    check(Case(2, 12, queries, 700, 64, bias=added, group=group))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("bias", ["", "key", "query"])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(1, 128, 128), (1, 100, 333), (2, 65, 129), (1, 17, 5000)])
def test_float32_that_fills_the_gpu_once(batch: int, queries: int, keys: int, bias: str, aligned: bool) -> None:
    added = {"key": (batch, 1, 1, keys), "query": (1, 12, queries, keys)}.get(bias)
    case = Case(batch, 12, queries, keys, 64, FLOAT, bias=added)
    assert cuda.plan(case.op(), case.shapes(), aligned, cuda.arch_of(0)).grid[0] == batch * 12 * -(-queries // 16)
    check(case, aligned, any_length=True)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize(("past", "queries"), [(0, 1), (1023, 1), (700, 7), (4000, 16)])
def test_caches_grow(past: int, queries: int, dtype: int, aligned: bool) -> None:
    """Both come out to the bit, written by one block each."""
    keys = past + queries
    case = Case(3, 16, queries, keys, 64, dtype, bias=(3, 1, queries, keys), heads_first="kv", group=4, past=past)
    inputs = case.inputs(np.random.default_rng(keys))
    plan = cuda.plan(case.op(), case.shapes(), aligned, cuda.arch_of(0))
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [DeviceBuffer(shape, ops.NUMPY[dtype], aligned) for shape in plan.output_shapes]
    launch(plan, [b.address for b in (*sources, *results)])
    cupy.cuda.Device(0).synchronize()
    for cache, expected in zip(results, case.whole(inputs)[1:3], strict=False):
        np.testing.assert_array_equal(cache.read().view(np.uint8), expected.view(np.uint8))
    within_budget(case, inputs, results[2].read())


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("size", [16, 48, 80, 128, 192, 256])
def test_every_size_of_a_head(size: int, dtype: int, aligned: bool) -> None:
    check(Case(2, 4, 1, 500, size, dtype, group=2), aligned)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("size", [8, 24, 40, 72, 248])
def test_a_product_may_end_behind_a_head(size: int, dtype: int, aligned: bool) -> None:
    check(Case(2, 4, 1, 500, size, dtype, group=2), aligned)


@pytest.mark.parametrize("queries", [200, 700])
@pytest.mark.parametrize("any_length", [False, True])
def test_longer_sequences_in_groups(queries: int, any_length: bool) -> None:
    """By the kernels that take each head of queries by itself."""
    check(Case(2, 8, queries, queries, 64, group=4, heads_first="k", causal=True), any_length=any_length)


@pytest.mark.parametrize(("batch", "keys", "parted"), [(8, 3000, True), (1, 1024, False), (3, 2000, False)])
def test_each_launch_gives_the_same(batch: int, keys: int, parted: bool) -> None:
    """Whichever block comes last: the order of the sums never changes, and the counters are as they were."""
    case = Case(batch, 16, 1, keys, 128, heads_first="kv", group=4)
    plan = cuda.plan(case.op(), case.shapes(), True, cuda.arch_of(0))
    assert bool(plan.scratch_bytes) == parted
    sources = [DeviceBuffer(x.shape, x.dtype, True, x) for x in case.inputs(np.random.default_rng(0))]
    result = DeviceBuffer(plan.output_shapes[0], ops.NUMPY[HALF], True)
    work, found = launcher(plan, [b.address for b in (*sources, result)]), set[bytes]()
    for _ in range(50):
        work()
        cupy.cuda.Device(0).synchronize()
        found.add(result.read().tobytes())
    assert len(found) == 1


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(1, 16), keys=st.integers(1, 3000), size=st.sampled_from([16, 32, 48, 64, 128]),
    way=st.none() | st.builds(Queries, warps=st.sampled_from([1, 2, 4, 8]), tiles=st.just(1), passes=st.just(1),
                              step=st.just(few.STEP), streamed=st.just(0), parts=st.integers(1, 40)),
    group=st.sampled_from([1, 2, 6]), masked=st.booleans(), aligned=st.booleans(),
    dtype=st.sampled_from([HALF, BRAIN]),
)  # fmt: skip
def test_any_few_queries(
    queries: int, keys: int, size: int, way: Queries | None, group: int, masked: bool, aligned: bool, dtype: int
) -> None:
    case = Case(2, 6, queries, keys, size, dtype, group=group)
    check(replace(case, bias=(2, 1, 1, keys)) if masked else case, aligned, AttentionVariant(queries=way))
