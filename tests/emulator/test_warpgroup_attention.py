"""The attention kernel for Hopper: run by the host's compiler over twins of the copy engine and of warpgroup products.

What it leaves out, one text for all lengths, registers and shared memory.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.attentions import Case, within_budget
from bench.cases.ops import BRAIN, HALF
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.templates.attention import sm90
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from onnxfuse.cuda.templates.attention.work import work
from tests.emulator import emulate
from tests.emulator.test_attention import assert_in_budget, check
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels.attention_programs import answers

TWO = pytest.mark.parametrize("dtype", [HALF, BRAIN])


def way(warpgroups: int = 1, step: int = 64, ahead: int = 0) -> AttentionVariant:
    return AttentionVariant(queries=Queries(4 * warpgroups, 1, 1, step, warpgroups=1, ahead=ahead), min_blocks=1)


WAYS = pytest.mark.parametrize("tuning", [way(1, 64), way(2, 128, 1)], ids=["plain", "ahead"])


@WAYS
@TWO
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (15, 64), (64, 65), (77, 197), (130, 300)])
def test_the_kernel_gives_attention(queries: int, keys: int, dtype: int, tuning: AttentionVariant) -> None:
    """Whole steps and cut ones, rings that go round, warpgroups without a query."""
    check(Case(1, 2, queries, keys, 64, dtype), tuning)


@WAYS
@pytest.mark.parametrize("size", [16, 32, 48, 80, 96, 128])
def test_every_size_of_a_head(size: int, tuning: AttentionVariant) -> None:
    """Panels that are cut short, and several of them."""
    check(Case(1, 2, 70, 140, size), tuning)


@WAYS
@pytest.mark.parametrize("size", [8, 40, 72])
def test_a_product_may_end_behind_a_head(size: int, tuning: AttentionVariant) -> None:
    """What lies there, the next head, is not read: it need not be a number."""
    case = Case(2, 3, 70, 140, size)
    check(replace(case, heads_first="qkvy"), tuning)
    q, k, v = case.inputs(np.random.default_rng(0))
    for x in (q, k, v):
        x[..., size : 2 * size] = np.nan
    assert np.isnan(assert_in_budget(case, [q, k, v], tuning)).sum() == 2 * 70 * size


@pytest.mark.parametrize("size", [136, 248, 256])
def test_the_widest_heads(size: int) -> None:
    check(Case(1, 1, 20, 70, size), way(2, 64))


@WAYS
@pytest.mark.parametrize("heads_first", ["q", "kv", "y", "qkvy"])
def test_operands_lie_heads_first_or_side_by_side(heads_first: str, tuning: AttentionVariant) -> None:
    check(Case(2, 3, 70, 133, 32, heads_first=heads_first), tuning)


@WAYS
@pytest.mark.parametrize("heads_first", ["", "kv"])
def test_several_heads_read_one_of_keys(heads_first: str, tuning: AttentionVariant) -> None:
    """Two of four, and all five the same, as in multi-query attention."""
    check(Case(2, 4, 70, 133, 32, group=2, heads_first=heads_first), tuning)
    check(Case(1, 5, 70, 133, 32, group=5, heads_first=heads_first), tuning)


@WAYS
@TWO
@pytest.mark.parametrize(
    "bias", [(2, 1, 1, 136), (1, 2, 1, 136), (136,), (2, 2, 70, 136), (1, 2, 70, 136), (2, 1, 70, 136), (70, 136)]
)
def test_a_bias_is_broadcast(bias: tuple[int, ...], dtype: int, tuning: AttentionVariant) -> None:
    check(Case(2, 2, 70, 136, 32, dtype, bias=bias), tuning)


@pytest.mark.parametrize("tuning", [way(), None], ids=["warpgroups", "streamed"])
@pytest.mark.parametrize(
    ("bias", "also"), [((2, 2, 1, 136), (2, 1, 70, 136)), ((1, 1, 70, 136), (136,)), ((2, 2, 70, 136), (2, 1, 1, 1))]
)
def test_two_biases_are_added(
    bias: tuple[int, int, int, int], also: tuple[int, ...], tuning: AttentionVariant | None
) -> None:
    """As ALiBi and a mask are, one by key, one by query and key: their sum is not in memory."""
    check(
        Case(2, 2, 70, 136, 32, bias=bias, also=also),
        tuning or AttentionVariant(queries=Queries(4, 1, 1, 64, streamed=1)),
    )


def test_two_biases_by_query_go_by_step_by_step() -> None:
    check(Case(2, 2, 40, 72, 32, bias=(2, 2, 40, 72), also=(1, 1, 40, 72)))


@WAYS
@pytest.mark.parametrize("bias", [None, (2, 1, 1, 150)])
def test_the_causal_mask(bias: tuple[int, int, int, int] | None, tuning: AttentionVariant) -> None:
    check(Case(2, 1, 150, 150, 32, causal=True, bias=bias), tuning)


def test_windows_have_biases_of_their_own() -> None:
    check(Case(6, 2, 16, 16, 32, bias=(1, 3, 2, 16, 16), apart="qk", target=(-1, 4, 4, 64)), way())


@pytest.mark.parametrize("scale", [0.7, -0.7])
def test_the_scale_may_turn_the_order_of_the_scores(scale: float) -> None:
    check(Case(1, 2, 9, 70, 16, scale=scale), way())


@pytest.mark.parametrize("bias", [None, (3, 1, 1, 136), (3, 1, 70, 136), (1, 2, 70, 136)])
@pytest.mark.parametrize("causal", [False, True])
@WAYS
def test_a_block_takes_one_tile_after_the_other(
    tuning: AttentionVariant, causal: bool, bias: tuple[int, int, int, int] | None
) -> None:
    """As on a GPU of two multiprocessors; queries of the next tile come to another place, or to the same one."""
    case = Case(3, 2, 136 if causal else 70, 136, 32, causal=causal)
    case = replace(case, bias=bias and tuple(case.queries if n == 70 else n for n in bias))
    inputs = case.inputs(np.random.default_rng(0))
    if bias is not None and bias[2] == 70:
        inputs[3][...] = np.where(np.tri(case.queries, 136, dtype=bool), inputs[3], -np.inf)
    plan = cuda.plan(case.op(), case.shapes(), True, Arch("sm_90a", 2), tuning)
    (got,) = emulate.run(plan, inputs, [ops.NUMPY[HALF]])
    within_budget(case, inputs, got)


# ---- masks: what they hide is left out, and nothing else


def windowed(queries: int, keys: int, reach: int) -> np.ndarray:
    return np.abs(np.arange(queries)[:, None] - np.arange(keys)) <= reach


MASKS = {
    "local": windowed(300, 320, 40),
    "causal": np.tri(300, 320, dtype=bool),
    "padding behind": np.broadcast_to(np.arange(320) < 130, (300, 320)),
    "padding before": np.broadcast_to(np.arange(320) >= 200, (300, 320)),
    "nothing hidden": np.ones((300, 320), bool),
    "two islands": np.broadcast_to((np.arange(320) // 64) % 2 == 1, (300, 320)),
}


def hidden(dtype: int, low: str) -> float:
    lowest = -65504.0 if dtype == HALF else -3.3895e38
    return {"-inf": -np.inf, "lowest": lowest, "-30720": -30720.0}[low]


@WAYS
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("dtype", "low"), [(HALF, "lowest"), (HALF, "-inf"), (HALF, "-30720"), (BRAIN, "lowest")])
def test_a_mask_hides_what_it_hides(mask: str, dtype: int, low: str, tuning: AttentionVariant) -> None:
    case = Case(1, 2, 300, 320, 16, dtype, bias=(1, 1, 300, 320))
    q, k, v, bias = case.inputs(np.random.default_rng(0))
    bias[0, 0] = np.where(MASKS[mask], 0, hidden(dtype, low))
    assert_in_budget(case, [q, k, v, bias], tuning)


@WAYS
@pytest.mark.parametrize("shape", [(1, 1, 150, 200), (1, 2, 150, 200)])
@pytest.mark.parametrize(("low", "dtype"), [("lowest", HALF), ("-inf", HALF), ("lowest", BRAIN)])
def test_a_query_that_sees_no_key_gets_what_the_nodes_give(
    low: str, dtype: int, shape: tuple[int, int, int, int], tuning: AttentionVariant
) -> None:
    """The mean of all values, or no number: also of those steps that no other query of the block sees."""
    case = Case(1, 2, 150, 200, 16, dtype, bias=shape)
    q, k, v, bias = case.inputs(np.random.default_rng(0))
    seen = windowed(150, 200, 10)
    seen[[3, 100]] = False
    bias[...] = np.where(seen, 0, hidden(dtype, low))
    got = assert_in_budget(case, [q, k, v, bias], tuning)
    if low == "-inf":
        assert np.isnan(got[0, 3]).all()
        assert np.isfinite(got[0, 4]).all()


@WAYS
@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("low", ["-inf", "lowest"])
def test_keys_may_be_hidden_for_all(low: str, safe: bool, tuning: AttentionVariant) -> None:
    """All of them in one sequence, those behind and before in others."""
    case = Case(3, 2, 20, 300, 16, bias=(3, 1, 1, 300), safe=safe and low == "-inf")
    q, k, v, bias = case.inputs(np.random.default_rng(0))
    bias[...] = hidden(HALF, low)
    bias[0, ..., :100] = 0
    bias[1, ..., 270:] = 0
    assert_in_budget(case, [q, k, v, bias], tuning)


def test_what_is_known_of_steps_comes_32_at_a_time() -> None:
    """Islands of keys in some of 35 steps, before and behind the first 32."""
    case = Case(1, 2, 20, 2208, 16, bias=(1, 1, 20, 2208))
    q, k, v, bias = case.inputs(np.random.default_rng(0))
    seen = np.zeros(2208, bool)
    seen[[70, 1990, 2040, 2050, 2200]] = True
    bias[...] = np.where(seen, bias, -65504)
    assert_in_budget(case, [q, k, v, bias], way())


@WAYS
def test_steps_that_hide_all_are_not_fetched(tuning: AttentionVariant) -> None:
    """Keys and values there are no numbers: they would not be hidden by a weight of zero."""
    case = Case(1, 2, 300, 512, 16, bias=(1, 1, 300, 512))
    q, k, v, bias = case.inputs(np.random.default_rng(0))
    bias[...] = -65504
    bias[..., 130:190] = 0
    assert tuning.queries is not None
    step, plan = tuning.queries.step, cuda.plan(case.op(), case.shapes(), True, H200, tuning)
    (clean,) = emulate.run(plan, [q, k, v, bias], [ops.NUMPY[HALF]])
    for x in (k, v):
        x[:, : 130 // step * step] = np.nan
        x[:, -(-190 // step) * step :] = np.nan
    (got,) = emulate.run(plan, [q, k, v, bias], [ops.NUMPY[HALF]])
    np.testing.assert_array_equal(got, clean)


# ---- the plan


@pytest.mark.parametrize("bias", [None, (3, 1, 1, 704), (3, 1, 704, 704)])
def test_no_length_stands_in_the_text(bias: tuple[int, int, int, int] | None) -> None:
    case = Case(3, 4, 704, 704, bias=bias)
    found = set()
    for length in (8, 64, 72, 512, 704, 4096):
        now = replace(case, queries=length, keys=length, bias=bias and tuple(length if n == 704 else n for n in bias))
        plan = cuda.plan(now.op(), now.shapes(), True, H200, way(2))
        found.add((plan.kernel, *(p.kernel for p in plan.then)))
    assert len(found) == 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [None, (3, 1, 1, 704), (3, 1, 704, 704), (1, 4, 704, 704)])
def test_one_program_answers_for_every_length(causal: bool, bias: tuple[int, int, int, int] | None) -> None:
    """Those of odd numbers of keys, whose biases by query the copy engine does not read, go by step by step."""
    case = Case(3, 4, 704, 704, bias=bias, causal=causal)
    made, _ = answers(case, H200, (1, 8, 24, 64, 77, 512, 704, 1023, 4096))
    assert len(made.kernels) <= 8
    assert not made.pins


@pytest.mark.parametrize(
    "case",
    [
        Case(8, 12, 512, 512), Case(8, 12, 512, 512, causal=True, dtype=BRAIN),
        Case(8, 12, 512, 512, bias=(8, 1, 1, 512)),
        Case(8, 12, 512, 512, bias=(8, 1, 512, 512)), Case(8, 16, 512, 512, 128, causal=True),
        Case(8, 16, 512, 512, 128, bias=(1, 16, 512, 512)), Case(8, 4, 512, 512, 256), Case(8, 8, 512, 512, 80),
        Case(8, 8, 512, 512, 40), Case(8, 16, 729, 729, 72),
    ],
    ids=str,
)  # fmt: skip
def test_products_run_beside_the_rest_and_registers_suffice(case: Case) -> None:
    """The compiler tells where it has to wait for each product by itself."""
    for queries in (None, *sm90.ways(work(case.op(), case.shapes()))):
        tuning = AttentionVariant(queries=queries or sm90.choose(work(case.op(), case.shapes()), H200))
        plan = cuda.plan(case.op(), case.shapes(), True, H200, tuning)
        assert plan.shared_bytes <= H200.shared_bytes
        for launch in (plan, *plan.then):
            _, log = nvrtc.build(launch.kernel, H200, ("-Xptxas=-v",))
            assert set(re.findall(r"(\d+) bytes spill stores", log)) == {"0"}, tuning
            assert "serialized" not in log, tuning
