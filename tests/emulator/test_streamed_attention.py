"""The attention kernel for any length: run by the host's compiler, one text for all lengths, compiled for every GPU."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases.attentions import Case
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.arch import SUPPORTED, Arch
from onnxfuse.cuda.templates.attention import streamed
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from onnxfuse.cuda.templates.attention.work import work
from onnxfuse.support.errors import KernelError
from tests.emulator.test_attention import A100, BIASES, assert_in_budget, check
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels.attention_programs import answers

TYPES = [HALF, BRAIN, FLOAT]
TWO = pytest.mark.parametrize("dtype", [HALF, FLOAT])
"""An element type of either size."""


def way(warps: int = 2, tiles: int = 1, step: int = 16, stages: int = 2) -> AttentionVariant:
    return AttentionVariant(queries=Queries(warps, tiles, 1, step, streamed=1, stages=stages))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 70), (33, 15), (40, 16), (31, 33), (70, 17)])
def test_the_kernel_gives_attention(dtype: int, queries: int, keys: int) -> None:
    """Whole steps and cut ones, warps without a query among those of a block."""
    check(Case(1, 2, queries, keys, 16, dtype), way())


@pytest.mark.parametrize("size", [16, 48, 64, 128, 256])
@pytest.mark.parametrize("aligned", [True, False])
@TWO
def test_every_size_of_a_head(size: int, aligned: bool, dtype: int) -> None:
    check(Case(1, 2, 17, 40, size, dtype), way(1, 2 if size <= 64 else 1), aligned)


@pytest.mark.parametrize("size", [8, 24, 40, 72, 136, 248])
@pytest.mark.parametrize("aligned", [True, False])
def test_a_product_may_end_behind_a_head(size: int, aligned: bool) -> None:
    """What lies there, the next head, is not read: it need not be a number."""
    case, tuning = Case(2, 3, 17, 40, size), way(1, 2 if size <= 64 else 1)
    check(replace(case, heads_first="qkvy"), tuning, aligned)
    q, k, v = case.inputs(np.random.default_rng(0))
    for x in (q, k, v):
        x[..., size : 2 * size] = np.nan
    assert np.isnan(assert_in_budget(case, [q, k, v], tuning, aligned)).sum() == 2 * 17 * size


@pytest.mark.parametrize("step", [16, 64])
@pytest.mark.parametrize("bias", BIASES)
@TWO
def test_a_bias_is_broadcast(bias: tuple[int, ...], step: int, dtype: int) -> None:
    """Read in pairs, where a row of it begins on a boundary of two elements, and element by element."""
    case = Case(2, 2, 9, 21, 16, dtype, bias=bias)
    check(case, way(2, 1, step))
    check(replace(case, keys=22, bias=tuple(22 if n == 21 else n for n in bias)), way(2, 1, step))


@pytest.mark.parametrize("heads_first", ["q", "kv", "y", "qkvy"])
@TWO
def test_operands_lie_heads_first_or_side_by_side(heads_first: str, dtype: int) -> None:
    check(Case(2, 3, 9, 21, 16, dtype, heads_first=heads_first), way())


@TWO
def test_windows_have_biases_of_their_own_and_a_result_takes_any_shape(dtype: int) -> None:
    check(Case(6, 2, 9, 9, 16, dtype, bias=(1, 3, 2, 9, 9), apart="qk", target=(-1, 3, 3, 32)), way())


@pytest.mark.parametrize("scale", [0.7, -0.7])
@pytest.mark.parametrize("bias", [None, (21,)])
@TWO
def test_the_scale_may_turn_the_order_of_the_scores(scale: float, bias: tuple[int] | None, dtype: int) -> None:
    check(Case(1, 2, 9, 21, 16, dtype, scale=scale, bias=bias), way())


@pytest.mark.parametrize("tuning", [way(2, 1, 16), way(1, 2, 32), way(3, 1, 48)])
@pytest.mark.parametrize("sequence", [1, 16, 40, 130])
@pytest.mark.parametrize("bias", [False, True])
@TWO
def test_the_causal_mask(sequence: int, tuning: AttentionVariant, bias: bool, dtype: int) -> None:
    """Steps before, on and behind the diagonal of a warp."""
    check(Case(1, 1, sequence, sequence, 16, dtype, causal=True, bias=(1, 1, 1, sequence) if bias else None), tuning)


@settings(max_examples=15, deadline=None)
@given(
    queries=st.integers(1, 70), keys=st.integers(1, 140), warps=st.integers(1, 4), tiles=st.integers(1, 2),
    step=st.sampled_from([16, 32, 48, 64]), stages=st.integers(2, 5), bias=st.booleans(), aligned=st.booleans(),
    dtype=st.sampled_from([HALF, FLOAT]),
)  # fmt: skip
def test_the_queries_may_be_shared_in_any_way(
    queries: int, keys: int, warps: int, tiles: int, step: int, stages: int, bias: bool, aligned: bool, dtype: int
) -> None:
    case = Case(1, 2, queries, keys, 16, dtype, bias=(1, 1, 1, keys) if bias else None)
    check(case, way(warps, tiles, step, stages), aligned)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("stages", [3, 4])
@TWO
def test_several_steps_may_be_on_their_way(causal: bool, stages: int, dtype: int) -> None:
    """Fewer steps than stages, as many, and more: the ring is filled again."""
    for keys in (10, 16 * stages - 16, 16 * stages, 130):
        check(Case(1, 1, keys, keys, 16, dtype, causal=causal, bias=(1, 1, 1, keys)), way(2, 1, 16, stages))


@pytest.mark.parametrize(
    ("case", "stages"),
    [
        (Case(8, 12, 128, 128, 64, FLOAT), 4),
        (Case(32, 12, 128, 128, 64, FLOAT), 0),
        (Case(8, 12, 128, 64, 64, FLOAT), 0),
        (Case(8, 12, 128, 128, 64, HALF), 0),
    ],
    ids=["all resident", "more blocks", "few steps", "float16"],
)
def test_four_stages_where_all_blocks_are_resident(case: Case, stages: int) -> None:
    """In float32, of more than two steps."""
    mine = work(case.op(), case.shapes())
    assert streamed.choose(mine, H200).stages == stages


@pytest.mark.parametrize("stages", [1, 9])
def test_stages_that_do_not_fit_are_refused(stages: int) -> None:
    case = Case(1, 1, 64, 64, 64, FLOAT)
    with pytest.raises(KernelError, match=f"{stages} stages of 64 keys"):
        cuda.plan(case.op(), case.shapes(), True, H200, way(4, 1, 64, stages))


@pytest.mark.parametrize("safe", [False, True])
@TWO
def test_a_step_that_is_wholly_masked_leaves_no_trace(safe: bool, dtype: int) -> None:
    """Scores of minus infinity alone, before and behind those that count; a row of nothing else is no number, or 0."""
    case = Case(2, 1, 20, 70, 16, dtype, bias=(2, 1, 1, 70), safe=safe)
    q, k, v, bias = case.inputs(np.random.default_rng(0))
    bias[...] = -np.inf
    bias[0, ..., 40:50] = 0
    got = assert_in_budget(case, [q, k, v, bias], way())
    assert np.isfinite(got[0]).all()
    assert not got[1].any() if safe else np.isnan(got[1]).all()


@pytest.mark.parametrize("bias", [(70,), (1, 1, 20, 70)])
@pytest.mark.parametrize("dtype", [BRAIN, FLOAT])
def test_a_row_masked_by_the_lowest_number_is_a_mean(dtype: int, bias: tuple[int, ...]) -> None:
    """As exporters of transformers mask padding: times log2(e) it is no number any more."""
    case = Case(1, 1, 20, 70, 16, dtype, bias=bias)
    q, k, v, added = case.inputs(np.random.default_rng(0))
    added[...] = -3.38e38
    got = assert_in_budget(case, [q, k, v, added], way())
    np.testing.assert_allclose(got, np.broadcast_to(v.astype(np.float32).mean(1, keepdims=True), got.shape), atol=0.01)


@TWO
def test_without_a_key_the_result_is_zero(dtype: int) -> None:
    """As the product of weights [queries, 0] with values [0, size]."""
    case = Case(2, 2, 9, 0, 16, dtype)
    assert not assert_in_budget(case, case.inputs(np.random.default_rng(0))).any()


@pytest.mark.parametrize("empty", [{"batch": 0}, {"queries": 0}])
def test_nothing_to_compute_launches_nothing(empty: dict[str, Any]) -> None:
    case = replace(Case(2, 2, 9, 21, 16), **empty)
    assert cuda.plan(replace(case.op(), open_length=True), case.shapes(), True, H200).grid[0] == 0


def test_a_way_that_is_none() -> None:
    with pytest.raises(KernelError, match="expected a multiple of 16"):
        cuda.plan(Case(1, 2, 9, 21).op(), Case(1, 2, 9, 21).shapes(), True, H200, way(2, 1, 24))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [None, (3, 1, 1, 700), (1, 4, 700, 700)])
@TWO
def test_one_program_answers_for_every_length(causal: bool, bias: tuple[int, int, int, int] | None, dtype: int) -> None:
    """Its kernels are those of the ways to share the queries, however many lengths come."""
    case = Case(3, 4, 700, 700, dtype=dtype, bias=bias, causal=causal)
    made, found = answers(case, A100, (1, 2, 15, 63, 64, 65, 128, 197, 512, 700, 1023, 4096, 100_000))
    ways = streamed.ways(work(replace(case.op(), open_length=True), case.shapes()))
    # A single query has its bias as if it were one for all of them. Of float32 what fills the GPU once has a kernel of
    # its own, and one with more stages.
    assert len(found) <= len(ways) + 1 + 2 * (dtype == FLOAT)
    assert len(made.kernels) <= len(found)
    assert not made.pins


COMPILED = [
    Case(8, 12, 512, 512), Case(8, 12, 512, 512, causal=True, dtype=BRAIN), Case(8, 12, 512, 512, bias=(8, 1, 1, 512)),
    Case(8, 12, 512, 512, 32, bias=(1, 12, 512, 512)), Case(8, 16, 512, 512, 128, causal=True),
    Case(8, 16, 512, 512, 128, bias=(1, 16, 512, 512)),
]  # fmt: skip


WIDE = [Case(8, 4, 512, 512, 256), Case(8, 4, 512, 512, 256, causal=True, bias=(8, 1, 1, 512))]
"""The widest heads, of float32 alone: their queries are read again in each step."""


@pytest.mark.parametrize("arch", SUPPORTED, ids=lambda arch: arch.name)
@pytest.mark.parametrize("case", [*COMPILED, *(replace(c, dtype=FLOAT) for c in (*COMPILED, *WIDE))], ids=str)
def test_registers_and_shared_memory_suffice_on_every_gpu(arch: Arch, case: Case) -> None:
    """As the plan chooses it; of float32 every way."""
    op = replace(case.op(), open_length=True)
    others = cuda.candidates(op, case.shapes(), arch) if case.dtype == FLOAT else ()
    for tuning in (None, *others):
        plan = cuda.plan(op, case.shapes(), True, arch, tuning)
        assert plan.shared_bytes <= arch.shared_bytes
        cubin, log = nvrtc.build(plan.kernel, arch, ("-Xptxas=-v",))
        assert plan.kernel.entry.encode() in cubin
        assert set(re.findall(r"(\d+) bytes spill stores", log)) == {"0"}
