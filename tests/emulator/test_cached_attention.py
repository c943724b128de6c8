"""Attention behind KV caches, run by the host's compiler: shared and separate buffers, all options, unequal lengths."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from bench.cases import ops
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.planning.arch import A10, SUPPORTED
from onnxfuse.cuda.templates.cached_attention import plan as planning
from onnxfuse.support.errors import NoPlanError
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels.cached_attentions import Case, within_budget


def check(case: Case, aligned: bool = True, arch: Arch = H200, shared: bool | None = None) -> None:
    """Run the plan of a case on caches of their own, and where they have room on the buffers that it reads."""
    op, inputs = case.op(), case.inputs(np.random.default_rng(0))
    plan = cuda.plan(op, case.shapes(inputs), aligned, arch)
    types = [np.dtype(ops.NUMPY[t]) for t in op.outputs]
    got = emulate.run(plan, inputs, types, aligned)
    within_budget(case, inputs, got)
    if case.total > case.capacity:
        return
    fresh = 2 * len(case.before) * case.queries * case.of_keys * case.size
    again = emulate.run(plan, inputs, types, aligned, caches=case.caches, written_there=fresh)
    assert again[0].tobytes() == got[0].tobytes()
    for output, source in case.caches.items():
        for row, before in enumerate(case.before):
            end = before + case.queries
            assert again[output][row, :, :end].tobytes() == got[output][row, :, :end].tobytes()
            assert again[output][row, :, end:].tobytes() == inputs[source][row, :, end:].tobytes()


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("half", [0, 16])
def test_a_token_behind_rows_of_unequal_lengths(packed: bool, half: int, aligned: bool) -> None:
    check(Case((5, 0, 12), packed=packed, half=half), aligned)


ROTATED = Case((5, 0, 12), half=16)


@pytest.mark.parametrize(
    "case",
    [
        replace(ROTATED, interleaved=True), replace(ROTATED, half=8), replace(ROTATED, window=4),
        replace(ROTATED, softcap=1.5), replace(ROTATED, sink=True), replace(ROTATED, smooth=True),
        replace(ROTATED, norm=True, packed=True), replace(ROTATED, norm=True, half=0),
        replace(ROTATED, sink=True, softcap=2.0, window=3, interleaved=True, norm=True),
    ],
    ids=str,
)  # fmt: skip
def test_every_option(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize(
    ("before", "queries", "capacity"),
    [
        ((0,), 1, 16),
        ((0, 0), 9, 16),
        ((0,), 20, 0),
        ((5, 3), 6, 16),
        ((40, 2), 3, 43),
        ((16, 16), 1, 16),
        ((7,), 33, 64),
    ],
)
def test_prompts_and_tokens(before: tuple[int, ...], queries: int, capacity: int, window: int) -> None:
    """First prompts, continued ones, more than a tile of 16 rows, caches that are full or grow."""
    check(Case(before, queries, capacity, half=16, packed=True, window=window))


@pytest.mark.parametrize(("heads", "of_keys", "size"), [(4, 4, 16), (6, 2, 24), (16, 1, 64), (5, 5, 40), (2, 1, 128)])
@pytest.mark.parametrize("dtype", [FLOAT, BRAIN])
def test_heads_of_every_kind(heads: int, of_keys: int, size: int, dtype: int) -> None:
    if dtype == FLOAT and size % 16:
        size *= 2
    check(Case((70, 3), 2, 96, heads, of_keys, size, dtype, half=size // 2))


@pytest.mark.parametrize("sm_count", [1, 16, 132])
def test_blocks_that_share_the_keys(sm_count: int) -> None:
    """One block, blocks of a cluster, and blocks that leave what they find in scratch memory; some find nothing."""
    case = Case((700, 1), 1, 768, 4, 2, 64, half=32, packed=True)
    check(case, arch=replace(H200, sm_count=sm_count))
    check(case, arch=Arch("sm_80", sm_count))


@pytest.mark.parametrize("half", [0, 16])
@pytest.mark.parametrize(("window", "sink"), [(0, False), (0, True), (4, False)])
@pytest.mark.parametrize(("queries", "capacity", "padding"), [
    (9, 16, (3, 0, 8)), (9, 0, (3, 0, 8)), (40, 64, (33, 1, 0)), (300, 0, (290, 17, 0)),
])  # fmt: skip
def test_what_pads_a_prompt_is_no_key(
    queries: int, capacity: int, padding: tuple[int, ...], window: int, sink: bool, half: int
) -> None:
    """Of a few tokens and of many, with blocks that have padding alone; it joins the caches, as in ONNX Runtime."""
    case = Case((0, 0, 0), queries, capacity, half=half, packed=True, window=window, sink=sink, padding=padding)
    check(case)
    op, inputs = case.op(), case.inputs(np.random.default_rng(1))
    plan = cuda.general(op, case.shapes(inputs), H200)
    within_budget(case, inputs, emulate.run(plan, inputs, [np.dtype(ops.NUMPY[t]) for t in op.outputs], False))


@pytest.mark.parametrize("case", [
    ROTATED, Case((700, 1), 1, 768, 4, 2, 64, half=32, packed=True), Case((0, 50), 7, 64, window=9),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("arch", [H200, Arch("sm_80", 16)], ids=lambda arch: arch.name)
@pytest.mark.parametrize("planned", [0, 3])
def test_a_launch_takes_the_lengths_from_memory(case: Case, arch: Arch, planned: int) -> None:
    """As a CUDA graph replays it, captured at the first token or a later one: the total at the capture decides how many
    blocks share the keys, and no more."""
    inputs = case.inputs(np.random.default_rng(0))
    shapes = [*case.shapes(inputs)]
    shapes[[*case.op().body.input].index("total")] = (case.queries + planned,)
    plan = cuda.plan(case.op(), tuple(shapes), True, arch)
    within_budget(case, inputs, emulate.run(plan, inputs, [np.dtype(ops.NUMPY[t]) for t in case.op().outputs]))


def test_tokens_behind_the_last_row_of_the_rotary_tables_are_refused() -> None:
    """As by ONNX Runtime: their rows would be read beside the tables."""
    inputs = ROTATED.inputs(np.random.default_rng(0))
    *others, cos, sin = ROTATED.shapes(inputs)
    rows = ROTATED.total
    for known in (rows, rows - 1):
        shapes = (*others, (known, *cos[1:]), (known, *sin[1:]))
        refused = pytest.raises(NoPlanError, match="rotary tables of 12 rows for 13 tokens")
        with nullcontext() if known == rows else refused:
            cuda.plan(ROTATED.op(), shapes, True, H200)


def test_one_general_kernel_takes_all_shapes() -> None:
    """For packs: beyond their ranges nothing can be compiled."""
    kernels = set()
    for before, queries, capacity in (((5, 0, 12), 1, 16), ((0,), 40, 48), ((300,), 1, 512)):
        case = Case(before, queries, capacity, half=16)
        inputs = case.inputs(np.random.default_rng(0))
        plan = cuda.general(case.op(), case.shapes(inputs), H200)
        kernels.add(plan.kernel)
        assert not plan.then
        within_budget(
            case, inputs, emulate.run(plan, inputs, [np.dtype(ops.NUMPY[t]) for t in case.op().outputs], False)
        )
    assert len(kernels) == 1


def test_a_block_that_takes_all_keys_of_a_head_shares_them_with_none() -> None:
    """Where the estimate says so: nothing is left in scratch memory, and nothing is combined."""
    case = Case((306,) * 4, 1, 512, 16, 16, 32)
    plan = cuda.plan(case.op(), case.shapes(case.inputs(np.random.default_rng(0))), True, H200)
    assert (plan.grid[0], plan.scratch_bytes) == (4 * 16, 0)
    check(case)


WIDE = Case((70, 3), 2, 96, size=256, dtype=FLOAT)


@pytest.mark.parametrize("case", [WIDE, replace(WIDE, size=176)], ids=str)
def test_wide_heads_of_float32_where_shared_memory_is_small(case: Case) -> None:
    """By as many warps as it holds, one of 256 elements."""
    check(case, arch=A10)


@pytest.mark.parametrize("arch", SUPPORTED, ids=lambda a: a.name)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_every_size_of_a_head_fits_the_shared_memory(dtype: int, arch: Arch) -> None:
    """Queries, keys and values of a block, and what the blocks of a cluster leave for each other."""
    for size in range(16, 257, 8 if dtype == HALF else 16):
        for length in (64, 1024, 4096):
            case = Case((length - 1,), 1, length, 8, 2, size, dtype)
            caches = ((1, 2, length, size),) * 2
            shapes = ((1, 1, 8 * size), (1, 1, 2 * size), (1, 1, 2 * size), *caches, (1,), (length,))
            plan = cuda.plan(case.op(), shapes, True, arch)
            pieces = 16 * size // 2 * 16 if "CLUSTER = 8" in plan.kernel.text else 16
            assert plan.shared_bytes + pieces <= arch.shared_bytes, (size, length)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("qk_output = 1", "GroupQueryAttention with qk_output = 1, expected 0"),
        ("causal = 0", "GroupQueryAttention with causal = 0, expected 1"),
        ("do_rotary = 1", "GroupQueryAttention without cos_cache"),
        ("local_window_size = 0", "GroupQueryAttention with a window of 0 tokens, or a negative softcap"),
    ],
)
def test_what_the_kernel_does_not_compute_is_refused(change: str, reason: str) -> None:
    """With the reason in one line; the node stays."""
    op = Case().op()
    name, value = change.split(" = ")
    op.body.node[0].attribute.append(helper.make_attribute(name, int(value)))
    assert cuda.supports(op, lambda: H200) == reason


PROMPT = Case((0, 0), 40, 48, 4, 2, 32, half=16, packed=True)


@pytest.mark.parametrize(
    "case",
    [
        PROMPT, replace(PROMPT, before=(5, 70), capacity=128), replace(PROMPT, window=7), replace(PROMPT, softcap=1.5),
        replace(PROMPT, sink=True, norm=True), replace(PROMPT, half=0, packed=False, smooth=True),
        replace(PROMPT, capacity=0, before=(0,), queries=150), replace(PROMPT, before=(60,), capacity=128, window=33),
        replace(PROMPT, dtype=BRAIN, size=72, half=20), replace(PROMPT, dtype=FLOAT, before=(30,), capacity=96),
        replace(PROMPT, before=(10, 3), capacity=50, queries=130, heads=2, size=128),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("aligned", [True, False])
def test_prompts_in_two_launches(case: Case, aligned: bool) -> None:
    """Blocks with queries of their own, over caches that have the new tokens; on a GPU of one multiprocessor."""
    one = replace(H200, sm_count=1)
    inputs = case.inputs(np.random.default_rng(0))
    assert len(cuda.plan(case.op(), case.shapes(inputs), aligned, one).then) == 1
    check(case, aligned, one)


@pytest.mark.parametrize(
    ("before", "queries", "measured"), [((0,), 512, 23.2), ((0,) * 4, 512, 37.0), ((1023,), 1, 6.3)]
)
def test_estimates_are_near_what_was_measured(before: tuple[int, ...], queries: int, measured: float) -> None:
    """On an H200, of prompts and of a token behind others, microseconds."""
    case = Case(before, queries, 1024, 16, 4, 128, packed=True, half=64)
    shapes = case.shapes(case.inputs(np.random.default_rng(0)))
    assert planning.microseconds(case.op(), shapes, H200) == pytest.approx(measured, rel=0.25)
