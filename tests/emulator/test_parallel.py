"""Data movement of two shapes in one launch, run by the host's compiler: RoPE of queries and keys."""

import pytest

from bench.cases import moved, ops
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.cuda.launch_programs.family import Key
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import SUPPORTED, Arch
from onnxfuse.cuda.planning.launch_plan import SmallCosts
from onnxfuse.support.errors import NoPlanError
from tests.emulator.test_whole_kernels import H200, check
from tests.support.kernels import programs

Shapes = list[tuple[int, ...]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans as they are outside of these tests."""
    monkeypatch.setattr(launch_plan, "small_costs", lambda arch: SmallCosts(1024, 128))


def ropes(batch: int, tokens: int, heads: int, groups: int, size: int) -> Shapes:
    table = (batch, tokens, 1, size)
    return [(batch, tokens, heads, size), (batch, tokens, groups, size), table, table]


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("batch", "tokens", "heads", "groups", "size"), [
    (1, 1, 16, 4, 128), (3, 1, 2, 7, 64), (2, 5, 3, 1, 36), (1, 31, 4, 3, 6),
])  # fmt: skip
def test_small_bodies_share_a_launch(
    dtype: int, aligned: bool, batch: int, tokens: int, heads: int, groups: int, size: int
) -> None:
    """More queries than keys or fewer, blocks without work, rows that end within a vector."""
    plan = check(moved.ropes(dtype, size), ropes(batch, tokens, heads, groups, size), aligned)
    assert not plan.then
    assert plan.grid[0] % 2 == 0


@pytest.mark.parametrize("past", [0, 1, 65])
def test_bodies_of_other_operations(past: int) -> None:
    """What one of them reads, the other one does not."""
    size, heads, groups = 24, 6, 2
    table = (1, 1, 1, size)
    shapes = [(1, groups, 1, size), (1, heads, 1, size), table, table, (1, groups, past, size)]
    assert not check(moved.rope_and_cache(HALF, size), shapes).then


def test_larger_bodies_take_their_own_launches() -> None:
    """As by themselves: each thread of many waves has more to do."""
    small = Arch("sm_90a", 1, 32)
    shapes = ropes(2, 40, 4, 2, 24)
    plan = check(moved.ropes(HALF, 24), shapes, arch=small)
    assert len(plan.then) == 1
    alone = moved.rope(HALF, 24)
    for made, x in zip((plan, *plan.then), shapes, strict=False):
        own = cuda.plan(alone, (x, *shapes[2:]), True, small)
        assert (made.grid, made.block, made.parameters) == (own.grid, own.block, own.parameters)


def test_no_tokens_launch_nothing() -> None:
    assert cuda.plan(moved.ropes(HALF, 24), tuple(ropes(2, 0, 4, 2, 24)), True, H200).grid[0] == 0


@pytest.mark.parametrize("arch", SUPPORTED, ids=lambda arch: arch.name)
def test_it_compiles_for_every_gpu(arch: Arch) -> None:
    nvrtc.compile(cuda.plan(moved.ropes(HALF, 128), tuple(ropes(1, 1, 16, 4, 128)), True, arch).kernel, arch)


def test_one_program_answers_for_every_number_of_tokens() -> None:
    """One launch of few, two of many."""
    fused = moved.ropes(HALF, 64)
    made = dispatch.family(
        fused, Key((4,) * 4, (None, None, 16, 64, None, None, 4, 64, *(None, None, 1, 64) * 2)), True, H200
    )
    for tokens in (1, 2, 64, 500, 1, 0):
        now = tuple(ropes(1, tokens, 16, 4, 64))
        if made.answer(now) is None:
            made.record(now)
        assert made.answer(now) == programs.plan(fused, now, True, H200)


@pytest.mark.parametrize(("text", "inputs", "outputs", "reason"), [
    ("(x) => (y) { y = Transpose (x) }", 1, 1, "one output, expected several"),
    ("(x, z) => (y, w) { y = Transpose (x) w = Exp (z) }", 2, 2, "a body without data movement"),
])  # fmt: skip
def test_what_the_template_does_not_support(text: str, inputs: int, outputs: int, reason: str) -> None:
    fused = ops.op(text, (HALF,) * inputs, (HALF,) * outputs, "parallel")
    with pytest.raises(NoPlanError, match=reason):
        cuda.plan(fused, ((3, 4),) * inputs, True, H200)
