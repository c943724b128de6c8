"""The attention kernel for few queries: run by the host's compiler, whose blocks share keys, compiled for every GPU."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.attentions import Case, within_budget
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.cuda.launch_programs.family import Key
from onnxfuse.cuda.planning.arch import SUPPORTED, Arch
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.attention import few
from onnxfuse.cuda.templates.attention.costs import costs_of
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from onnxfuse.support.errors import KernelError
from tests.emulator import emulate
from tests.emulator.test_attention import assert_in_budget, check
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels import programs

TYPES = [HALF, BRAIN, FLOAT]


def way(parts: int = 3, warps: int = 2) -> AttentionVariant:
    return AttentionVariant(queries=Queries(warps, 1, 1, few.STEP, parts=parts))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 31), (1, 33), (3, 160), (17, 100)])
@pytest.mark.parametrize("parts", [1, 3])
def test_the_kernel_gives_attention(dtype: int, queries: int, keys: int, parts: int) -> None:
    """Blocks without a key for each warp, steps cut short, more rows than a tile has."""
    check(Case(1, 2, queries, keys, 16, dtype), way(parts))


@pytest.mark.parametrize(("queries", "keys"), [(17, 128), (40, 140), (33, 300)])
@pytest.mark.parametrize("masked", [False, True])
def test_warps_share_the_keys_of_all_queries_that_fill_the_gpu_once(queries: int, keys: int, masked: bool) -> None:
    """Of float32, in blocks that take all keys; more tiles of queries than multiprocessors stream their keys."""
    case = Case(2, 3, queries, keys, 16, FLOAT, bias=(2, 1, 1, keys) if masked else None)
    plan = cuda.plan(case.op(), case.shapes(), True, H200)
    assert plan.grid[0] == 2 * 3 * -(-queries // 16)
    assert plan.block[0] == costs_of(H200).few.warps * 32
    check(case, AttentionVariant())
    many = replace(case, batch=1 + H200.sm_count // 6, bias=None)
    assert "keys of a block; blocks that share" not in cuda.plan(many.op(), many.shapes(), True, H200).kernel.text


@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize("heads_first", ["", "kv", "qkvy"])
@pytest.mark.parametrize("queries", [1, 3])
def test_a_group_of_heads_reads_one_head_of_keys(group: int, heads_first: str, queries: int) -> None:
    check(Case(2, 8, queries, 70, 16, group=group, heads_first=heads_first), way())


@pytest.mark.parametrize("size", [16, 48, 64, 128, 256])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_every_size_of_a_head(size: int, aligned: bool, dtype: int) -> None:
    if dtype == FLOAT and size > 128:
        with pytest.raises(KernelError, match="wide heads"):
            cuda.plan(Case(1, 2, 1, 40, size, dtype).op(), Case(1, 2, 1, 40, size, dtype).shapes(), True, H200, way())
        return
    check(Case(1, 4, 1, 90, size, dtype, group=2), way(), aligned)


@pytest.mark.parametrize("size", [8, 40, 72, 248])
@pytest.mark.parametrize("aligned", [True, False])
def test_a_product_may_end_behind_a_head(size: int, aligned: bool) -> None:
    """The rest of it is zeros; what caches get is rows of a head without them."""
    check(Case(2, 4, 2, 90, size, group=2), way(), aligned)
    grow(Case(2, 4, 2, 90, size, heads_first="kv", group=2, past=87), way(), aligned)


@pytest.mark.parametrize("bias", [(2, 4, 3, 70), (1, 4, 3, 70), (3, 70), (70,), (1,), (2, 1, 3, 1), (2, 4, 1, 70), ()])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_bias_is_broadcast(bias: tuple[int, ...], dtype: int) -> None:
    check(Case(2, 4, 3, 70, 16, dtype, bias=bias, group=2), way())


@pytest.mark.parametrize("scale", [0.7, -0.7])
@pytest.mark.parametrize("bias", [None, (70,)])
def test_the_scale_may_turn_the_order_of_the_scores(scale: float, bias: tuple[int] | None) -> None:
    check(Case(1, 2, 1, 70, 16, scale=scale, bias=bias), way())


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_blocks_and_warps_whose_keys_are_masked_leave_no_trace(safe: bool, dtype: int) -> None:
    """A row of nothing else is no number, or 0."""
    case = Case(2, 2, 2, 200, 16, dtype, bias=(2, 1, 1, 200), safe=safe)
    q, k, v, bias = case.inputs(np.random.default_rng(0))
    bias[...] = -np.inf
    bias[0, ..., 140:150] = 0
    got = assert_in_budget(case, [q, k, v, bias], way(5))
    assert np.isfinite(got[0]).all()
    assert not got[1].any() if safe else np.isnan(got[1]).all()


@pytest.mark.parametrize("dtype", [BRAIN, FLOAT])
def test_a_row_masked_by_the_lowest_number_is_a_mean(dtype: int) -> None:
    case = Case(1, 2, 1, 150, 16, dtype, bias=(150,))
    q, k, v, added = case.inputs(np.random.default_rng(0))
    added[...] = -3.38e38
    got = assert_in_budget(case, [q, k, v, added], way())
    mean = v.astype(np.float32).mean(1, keepdims=True)
    np.testing.assert_allclose(got, np.broadcast_to(mean, got.shape), atol=0.01)


def test_without_a_key_the_result_is_zero() -> None:
    case = Case(2, 2, 1, 0, 16)
    assert not assert_in_budget(case, case.inputs(np.random.default_rng(0)), way()).any()


@pytest.mark.parametrize("empty", [{"batch": 0}, {"queries": 0}])
def test_nothing_to_compute_launches_nothing(empty: dict[str, Any]) -> None:
    case = replace(Case(2, 2, 1, 210, 16), **empty)
    assert cuda.plan(case.op(), case.shapes(), True, H200).grid[0] == 0


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize(("queries", "keys", "warps"), [(1, 1024, 8), (5, 100, 2), (1, 1300, 4), (16, 7, 1)])
def test_the_blocks_of_a_cluster_share_what_they_have_found(queries: int, keys: int, warps: int, dtype: int) -> None:
    """Blocks without a key, steps cut short; rows that each of eight gives a share of."""
    case = Case(1, 8, queries, keys, 64, dtype, heads_first="kv", group=4)
    tuning = way(costs_of(H200).few.cluster, warps)
    assert "CLUSTER = 8;" in cuda.plan(case.op(), case.shapes(), True, H200, tuning).kernel.text
    check(case, tuning)
    check(case, tuning, aligned=False)


@settings(max_examples=15, deadline=None)
@given(
    queries=st.integers(1, 16), keys=st.integers(1, 300), warps=st.sampled_from([1, 2, 4]), parts=st.integers(1, 9),
    group=st.sampled_from([1, 2, 4]), bias=st.booleans(), aligned=st.booleans(), dtype=st.sampled_from(TYPES),
)  # fmt: skip
def test_the_keys_may_be_shared_in_any_way(
    queries: int, keys: int, warps: int, parts: int, group: int, bias: bool, aligned: bool, dtype: int
) -> None:
    case = Case(1, 4, queries, keys, 16, dtype, bias=(1, 1, 1, keys) if bias else None, group=group)
    check(case, way(parts, warps), aligned)


def test_a_step_of_decoding_fills_the_gpu_and_reads_its_keys_once() -> None:
    """16 heads on 4 of keys, 1024 keys: a row of blocks for each of those, whose keys are shared as there is room."""
    for batch, parts, span in ((1, 8, 128), (8, 4, 256), (64, 1, 1024)):
        case = Case(batch, 16, 1, 1024, 128, heads_first="kv", group=4)
        plan = cuda.plan(case.op(), case.shapes(), True, H200)
        assert plan.grid[0] == batch * 4 * parts
        assert parts * span == case.keys
        assert bool(plan.scratch_bytes) == (parts == 4)
        assert f"CLUSTER = {8 if parts == 8 else 1};" in plan.kernel.text


def test_one_program_answers_for_every_length() -> None:
    case = Case(8, 16, 1, 1024, 128, heads_first="kv", group=4)
    op = replace(case.op(), open_length=True)
    made = dispatch.family(op, Key((3, 4, 4), (None, None, 2048, None, 4, None, 128, None, 4, None, 128)), True, H200)
    for keys in (128, 129, 1000, 1024, 2000, 5000, 100_000):
        for batch in (1, 8, 64):
            now = replace(case, batch=batch, keys=keys)
            expected = programs.plan(op, now.shapes(), True, H200)
            if made.answer(now.shapes()) is None:
                made.record(now.shapes())
            assert made.answer(now.shapes()) == expected
    # Clusters whose warps have one step or several, blocks of two sizes that share keys, and blocks that do not.
    assert len(made.kernels) == 5
    assert not made.pins


def grow(case: Case, tuning: Variant | None = None, aligned: bool = True) -> None:
    """Assert that the caches come out, to the bit, beside the attention."""
    inputs = case.inputs(np.random.default_rng(case.keys))
    plan = cuda.plan(case.op(), case.shapes(), aligned, H200, tuning)
    *caches, got = emulate.run(plan, inputs, [ops.NUMPY[case.dtype]] * 3, aligned)
    for cache, expected in zip(caches, case.whole(inputs)[1:3], strict=True):
        np.testing.assert_array_equal(cache.view(np.uint8), expected.view(np.uint8))
    within_budget(case, inputs, got)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("past", "keys"), [(0, 1), (1, 2), (31, 32), (100, 103), (199, 200), (60, 60)])
@pytest.mark.parametrize("aligned", [True, False])
def test_a_cache_is_written_as_it_is_read(past: int, keys: int, dtype: int, aligned: bool) -> None:
    """One new key, several, none; before the first one."""
    grow(Case(2, 4, 1, keys, 16, dtype, heads_first="kv", group=2, past=past), None, aligned)


@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize("layout", [{"heads_first": "kv"}, {"heads_first": "qkvy"}, {"apart": "kv"}])
def test_caches_of_any_layout_beside_more_rows_than_a_tile_has(queries: int, layout: dict[str, Any]) -> None:
    """The first tile alone writes them."""
    grow(Case(2, 4, queries, 150, 16, group=4, past=141, bias=(2, 1, queries, 150), **layout), way())


def test_caches_beside_many_queries_are_left_to_others() -> None:
    case = Case(2, 4, 17, 150, 16, heads_first="kv", past=133)
    with pytest.raises(KernelError, match="expected 1 to 16"):
        cuda.plan(case.op(), case.shapes(), True, H200)


COMPILED = [
    Case(8, 16, 1, 1024, 128, group=4), Case(8, 16, 1, 1024, 128, group=4, heads_first="kv", past=1023),
    Case(8, 32, 1, 4096, 64, bias=(8, 1, 1, 4096), dtype=BRAIN),
    Case(8, 16, 4, 1024, 256, group=4), Case(8, 16, 1, 1024, 128, FLOAT, group=4, bias=(1024,)),
]  # fmt: skip


@pytest.mark.parametrize("arch", SUPPORTED, ids=lambda arch: arch.name)
@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_registers_and_shared_memory_suffice_on_every_gpu(arch: Arch, case: Case) -> None:
    for tuning in (None, way(1, 2)):
        plan = cuda.plan(case.op(), case.shapes(), True, arch, tuning)
        assert plan.shared_bytes <= arch.shared_bytes
        cubin, log = nvrtc.build(plan.kernel, arch, ("-Xptxas=-v",))
        assert plan.kernel.entry.encode() in cubin
        assert set(re.findall(r"(\d+) bytes spill stores", log)) == {"0"}
