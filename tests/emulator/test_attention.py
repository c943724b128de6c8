"""The attention template: a library form taken apart, the plan for each size, the kernel run by the host's compiler."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser, printer

from bench.cases import ops
from bench.cases.attentions import Case, within_budget
from bench.cases.ops import BRAIN, DOUBLE, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.attention import kept
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from onnxfuse.cuda.templates.attention.work import work
from onnxfuse.support.errors import KernelError
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200

A100 = Arch("sm_80", 108)


def check(case: Case, tuning: Variant | None = None, aligned: bool = True) -> None:
    """Assert that the kernel stays in the budget."""
    inputs = case.inputs(np.random.default_rng(case.keys))
    assert_in_budget(case, inputs, tuning, aligned)


def assert_in_budget(
    case: Case, inputs: list[np.ndarray], tuning: Variant | None = None, aligned: bool = True
) -> np.ndarray:
    plan = cuda.plan(case.op(), case.shapes(), aligned, H200, tuning)
    (got,) = emulate.run(plan, inputs, [ops.NUMPY[case.dtype]], aligned)
    within_budget(case, inputs, got)
    return got


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("sequence", [1, 15, 16, 33, 197])
def test_the_kernel_gives_attention(dtype: int, sequence: int) -> None:
    check(Case(1, 2, sequence, sequence, 16, dtype))


@pytest.mark.parametrize("size", [16, 32, 48, 64, 96, 128])
@pytest.mark.parametrize("aligned", [True, False])
def test_every_size_of_a_head(size: int, aligned: bool) -> None:
    """Vectors of 16 bytes, of 8, and single elements where nothing is aligned."""
    check(Case(1, 2, 17, 40, size), aligned=aligned)


BIASES = [(2, 2, 9, 21), (1, 2, 9, 21), (9, 21), (21,), (1,), (2, 1, 9, 1), (2, 2, 1, 21), ()]


@pytest.mark.parametrize("bias", BIASES)
def test_a_bias_is_broadcast(bias: tuple[int, ...]) -> None:
    check(Case(2, 2, 9, 21, 16, bias=bias))


@pytest.mark.parametrize("heads_first", ["q", "kv", "y", "qkvy"])
def test_operands_lie_heads_first_or_side_by_side(heads_first: str) -> None:
    """From anything that computes heads."""
    check(Case(2, 3, 9, 21, 16, heads_first=heads_first))


def test_windows_have_biases_of_their_own_and_a_result_takes_any_shape() -> None:
    """Three windows of an image and a bias for each, in two images; queries and keys as RoPE leaves them."""
    check(Case(6, 2, 9, 9, 16, bias=(1, 3, 2, 9, 9), apart="qk", target=(-1, 3, 3, 32)))


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (Case(5, 2, 9, 9, 16, bias=(1, 3, 2, 9, 9)), "for the windows of a batch of 5"),
        (Case(6, 2, 9, 9, 16, target=(-1, 5)), "a result of shape"),
        (Case(6, 2, 9, 9, 16, target=(-1, -1)), "a result of shape"),
    ],
)
def test_windows_and_shapes_that_do_not_come_out(case: Case, told: str) -> None:
    with pytest.raises(KernelError, match=told):
        cuda.plan(case.op(), case.shapes(), True, H200)


@pytest.mark.parametrize("scale", [0.7, -0.7])
@pytest.mark.parametrize("bias", [None, (21,)])
def test_the_scale_may_turn_the_order_of_the_scores(scale: float, bias: tuple[int] | None) -> None:
    check(Case(1, 2, 9, 21, 16, scale=scale, bias=bias))


@pytest.mark.parametrize("sequence", [1, 16, 40, 130])
def test_the_causal_mask(sequence: int) -> None:
    check(Case(1, 1, sequence, sequence, 16, causal=True))


@settings(max_examples=15, deadline=None)
@given(
    queries=st.integers(1, 70), keys=st.integers(1, 140),
    way=st.builds(Queries, warps=st.integers(1, 4), tiles=st.integers(1, 2), passes=st.integers(1, 3),
                  step=st.sampled_from([16, 32, 48, 128])),
    bias=st.booleans(), aligned=st.booleans(),
)  # fmt: skip
def test_the_queries_may_be_shared_in_any_way(queries: int, keys: int, way: Queries, bias: bool, aligned: bool) -> None:
    """Warps, tiles, passes and steps of keys, whole or cut short."""
    check(Case(1, 2, queries, keys, 16, bias=(1, 1, 1, keys) if bias else None), AttentionVariant(queries=way), aligned)


@pytest.mark.parametrize("safe", [False, True])
def test_a_step_that_is_wholly_masked_leaves_no_trace(safe: bool) -> None:
    """Scores of minus infinity alone, before and behind those that count; a row of nothing else is no number, or 0."""
    case = Case(2, 1, 20, 70, 16, bias=(2, 1, 1, 70), safe=safe)
    q, k, v, bias = case.inputs(np.random.default_rng(0))
    bias[...] = -np.inf
    bias[0, ..., 40:50] = 0
    got = assert_in_budget(case, [q, k, v, bias], AttentionVariant(queries=Queries(2, 1, 1, 32)))
    assert np.isfinite(got[0]).all()
    assert not got[1].any() if safe else np.isnan(got[1]).all()


def test_a_row_masked_by_finite_numbers_is_a_mean() -> None:
    """As the plain nodes: all scores are equally low. Here they still differ by the scores behind the mask."""
    case = Case(1, 1, 16, 24, 16, bias=(24,))
    q, k, v, bias = case.inputs(np.random.default_rng(0))
    bias[...] = -60000
    assert np.isfinite(assert_in_budget(case, [q, k, v, bias])).all()


@pytest.mark.parametrize("empty", [{"batch": 0}, {"queries": 0}])
def test_nothing_to_compute_launches_nothing(empty: dict[str, Any]) -> None:
    case = replace(Case(2, 2, 9, 21, 16), **empty)
    assert cuda.plan(case.op(), case.shapes(), True, H200).grid[0] == 0


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (Case(1, 2, 9, 21, 20), "heads of 20 elements, expected a multiple of 8"),
        (Case(1, 2, 9, 21, 24, FLOAT), "heads of 24 elements, expected a multiple of 16"),
        (Case(1, 2, 9, 21, 272), "heads of 272 elements"),
        (Case(1, 2, 9, 21, 16, causal=True), "a causal mask over other keys"),
        (Case(1, 2, 9, 21, 16, bias=(7,)), "a bias of shape [7]"),
    ],
)
def test_sizes_that_it_does_not_take(case: Case, told: str) -> None:
    with pytest.raises(KernelError, match=told.replace("[", r"\[").replace("]", r"\]")):
        cuda.plan(case.op(), case.shapes(), True, H200)


FORM = '<domain: "onnxfuse", opset_import: ["" : 17, "com.microsoft" : 1]> library (q, k, v) => (y) {{ {} }}'


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("y = Identity (q)", "0 MultiHeadAttention"),
        ("n = Neg (q) y = com.microsoft.MultiHeadAttention <num_heads = 2> (n, k, v)", "queries that are computed"),
        ("r = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) y = Neg (r)", "a result that is worked on"),
        ("y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, q)", "more than queries"),
        ("y = com.microsoft.MultiHeadAttention <num_heads = 2, mask_filter_value = -1.0> (q, k, v)", "mask_filter"),
    ],
)
def test_forms_that_are_left_to_the_library(nodes: str, told: str) -> None:
    """Nothing is overlooked: whatever else the form computes is a reason."""
    case = Case(1, 2, 9, 21, 16)
    op = replace(case.op(), library=parser.parse_function(FORM.format(nodes)))
    assert told in (cuda.supports(op) or "")


@pytest.mark.parametrize(
    ("was", "becomes", "told"),
    [
        (
            "left = Where (lost, fill, found)",
            "n = Neg (found) left = Where (lost, fill, n)",
            "a result that is worked on",
        ),
        ("left = Where (lost, fill, found)", "left = Where (lost, found, fill)", "a result that is worked on"),
        ("found = Reshape (f, to4)", "n = Neg (f) found = Reshape (n, to4)", "a result that is worked on"),
        ("column = Gather <axis: int = 3>", "column = Gather <axis: int = 2>", "a result that is worked on"),
        ("nothing = Constant <value: tensor = float {0}>", "nothing = Constant <value = float {1.0}>", "than 0 where"),
    ],
)
def test_rows_without_keys_are_zeros_or_left_to_the_library(was: str, becomes: str, told: str) -> None:
    """What stands in for them, where, and for which rows: each is looked at."""
    op = Case(2, 1, 20, 70, 16, bias=(2, 1, 1, 70), safe=True).op()
    assert cuda.supports(op) is None
    assert op.library is not None
    text = printer.to_text(op.library)
    assert was in text
    changed = parser.parse_function(text.replace(was, becomes))
    assert told in (cuda.supports(replace(op, library=changed)) or "")


def test_float32_is_rounded_to_tf32_where_that_is_allowed() -> None:
    op = Case(1, 2, 9, 21, 16, FLOAT).op()
    assert cuda.supports(op, lambda: A100) is None
    told = cuda.supports(replace(op, tf32=False), lambda: A100)
    assert told == "the kernel rounds float32 to TF32, and use_tf32 is 0"


def test_float64_is_left_to_the_nodes() -> None:
    assert "attention on DOUBLE" in (cuda.supports(Case(1, 2, 9, 21, 16, DOUBLE).op()) or "")


def test_the_gpu_must_know_the_instructions() -> None:
    op = Case(1, 2, 9, 21, 16).op()
    assert cuda.supports(op, lambda: A100) is None
    assert cuda.supports(op, lambda: Arch("sm_75", 40)) == "the kernel needs sm_80, this is sm_75"


GPUS = [A100, Arch("sm_86", 84), Arch("sm_89", 58), H200, Arch("sm_100", 148), Arch("sm_120", 170)]


@pytest.mark.parametrize("arch", GPUS, ids=lambda arch: arch.name)
def test_every_length_fits_every_gpu(arch: Arch) -> None:
    """Short sequences stay in the shared memory that a block may have there; others go through it."""
    kilobytes = {"sm_86": 99, "sm_89": 99, "sm_120": 99, "sm_80": 163}.get(arch.name, 227)
    for size in (16, 64, 128):
        longest = kilobytes * 256 // (size + 9) // 16 * 16
        for keys, stays in ((1, True), (197, longest >= 197), (longest, True), (longest + 1, False), (5000, False)):
            case = Case(2, 3, 40, keys, size)
            q, k, v = case.shapes()
            assert cuda.fits(case.op(), (("batch", *q[1:]), ("batch", *k[1:]), ("batch", *v[1:])), arch) is None
            made = cuda.plan(case.op(), (q, k, v), True, arch)
            assert made.shared_bytes <= kilobytes * 1024
            tiled = "attention/tiled.cu" in [s.file for s in made.kernel.sections]
            assert (tiled and "constexpr int KEY_ROWS = 0;" not in made.kernel.text) is stays
            if not stays:
                with pytest.raises(KernelError, match="do not fit the shared memory of a block on " + arch.name):
                    cuda.plan(case.op(), (q, k, v), True, arch, AttentionVariant(queries=Queries(4, 1, 1, 64)))


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ([(2, 40, "W"), (2, 40, "W"), (2, 40, "W")], "the size of a head is not known"),
        ([None, None, None], "the size of a head is not known"),
        ([(2, 40, 60), (2, 40, 60), (2, 40, 60)], "heads of 20 elements"),
        ([(2, 40, 816), (2, 40, 816), (2, 40, 816)], "heads of 272 elements"),
    ],
)
def test_what_is_not_known_to_have_a_plan_has_none(shapes: list[tuple[int, int, str | int] | None], told: str) -> None:
    """A session decides once, before it knows what comes in."""
    assert told in (cuda.fits(Case(2, 3, 40, 40).op(), shapes, H200) or "")


@pytest.mark.parametrize("keys", [0, "S", None])
def test_the_number_of_keys_need_not_be_known(keys: int | str | None) -> None:
    assert cuda.fits(Case(2, 3, 40, 40).op(), [("B", "Q", 192), ("B", keys, 192), ("B", keys, 192)], H200) is None


@pytest.mark.parametrize(
    ("bias", "keys", "fits"),
    [
        (("B", 1, 1, "S"), "S", True),
        (("B", 1, 1, "T"), "S", False),
        (("B", 1, 1, 40), "S", False),
        (("B", 1, 1, "T"), 40, True),
        (("B", 1, "T", "U"), 40, True),
        (("B", 1, None, None), 40, True),
        (("B", 1, 1, 41), 40, False),
        (("B", 1, 1, "T"), 1, False),
        (None, 40, False),
    ],
)
def test_a_bias_is_known_not_to_widen_the_scores(
    bias: tuple[str | int | None, ...] | None, keys: str | int, fits: bool
) -> None:
    """Beside a number above 1 another extent can only be the same or 1, however it is called."""
    q, k = ("B", 40, 192), ("B", keys, 192)
    told = cuda.fits(Case(2, 3, 40, 40, bias=(2, 1, 1, 40)).op(), [q, k, k, bias], A100)
    assert ("may have more" in (told or "")) is not fits


def test_a_causal_mask_over_other_keys_does_not_fit() -> None:
    case = Case(2, 3, 40, 40, causal=True)
    assert cuda.fits(case.op(), case.shapes(), H200) is None
    assert "a causal mask" in (cuda.fits(case.op(), Case(2, 3, 40, 41).shapes(), H200) or "")
    of_length, of_other = ("B", "S", 192), ("B", "T", 192)
    assert cuda.fits(case.op(), [of_length] * 3, H200) is None
    assert "a causal mask" in (cuda.fits(case.op(), [of_length, of_other, of_other], H200) or "")
    assert "a causal mask" in (cuda.fits(case.op(), [("B", None, 192)] * 3, H200) or "")


@pytest.mark.parametrize("arch", [A100, H200])
@pytest.mark.parametrize(
    "case",
    [
        Case(32, 12, 128, 128, bias=(32, 1, 1, 128)), Case(32, 12, 197, 197, dtype=BRAIN), Case(64, 3, 49, 49, 32,
        bias=(1, 3, 49, 49)), Case(1, 2, 64, 64, 128, causal=True),
    ],
)  # fmt: skip
def test_it_compiles_without_a_gpu(arch: Arch, case: Case) -> None:
    plan = cuda.plan(case.op(), case.shapes(), True, arch)
    assert nvrtc.compile(plan.kernel, arch)


def test_blocks_fill_the_gpu() -> None:
    """BERT, ViT and one sentence on 132 multiprocessors."""

    def chosen(batch: int, heads: int, queries: int, keys: int, size: int = 64) -> Queries:
        case = Case(batch, heads, queries, keys, size)
        return kept.choose(work(case.op(), case.shapes()), H200)

    assert chosen(32, 12, 128, 128) == Queries(4, 1, 2, 128)
    assert chosen(32, 12, 197, 197) == Queries(4, 1, 4, 112)
    assert chosen(16, 12, 256, 256) == Queries(4, 1, 2, 128)
    assert chosen(32, 8, 77, 77) == Queries(5, 1, 1, 80)
    assert chosen(1, 12, 128, 128) == Queries(4, 1, 1, 128)
    assert chosen(2048, 3, 49, 49, 32) == Queries(4, 1, 1, 32)


def test_the_variants_are_many_and_differ() -> None:
    case = Case(32, 12, 128, 128)
    own, *variants = cuda.candidates(case.op(), case.shapes(), H200)
    assert own is None
    assert len(variants) > 7
    assert len({t.queries for t in variants if isinstance(t, AttentionVariant)}) == len(variants)
