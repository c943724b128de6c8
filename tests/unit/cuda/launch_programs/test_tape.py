"""Programs as the engine reads them: long paths are written, and branches that exclude each other share registers."""

import itertools
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT
from onnxfuse import cuda
from onnxfuse.cuda.launch_programs import tape
from onnxfuse.cuda.launch_programs.family import Family, Key
from onnxfuse.cuda.launch_programs.tape import HEADER, written
from onnxfuse.cuda.planning.arch import H200
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.runtime.engine.bridge import bridge
from onnxfuse.symbolic.branching import settled
from tests.support.kernels.tape_evaluator import Tape

NEGATE = ops.op("(x) => (y) { y = Neg(x) }", (FLOAT,), (FLOAT,), "pointwise")


def recorded(grid: Callable[[Any], Any], sizes: Iterable[int]) -> Family:
    """Return a program of a planner whose grid is computed by `grid`."""
    launch = cuda.plan(NEGATE, ((8,),), True, H200)

    def plan(shapes: Sequence[tuple[int, ...]]) -> LaunchPlan:
        return replace(launch, grid=(grid(shapes[0][0]), 1, 1))

    made = Family(Key((1,), (None,)), plan)
    for size in sizes:
        made.record(((size,),))
    return made


@pytest.mark.parametrize("fixed", [0, 1, 4])
def test_a_program_is_for_its_own_extents(fixed: int) -> None:
    """Those that are fixed, none of them too; the engine and its twin leave others, and other ranks, to the planner."""
    launch = cuda.plan(NEGATE, ((8,),), True, H200)
    made = Family(Key((2,), (fixed, None)), lambda shapes: launch)
    made.record(((fixed, 8),))
    data = written(made)
    assert data is not None
    rows = [(2, fixed, 8), (2, fixed + 1, 8), (2, fixed, 9), (1, fixed, 8)]
    words = struct.pack("<12q", *itertools.chain(*rows))
    assert bridge().unanswered(data, words, 3) == [1, 3]
    assert [Tape(data).answer(((one, 8),), made.kernels) is None for one in (fixed, fixed + 1)] == [False, True]


@pytest.mark.parametrize("answers", [2, 12])
def test_answers_share_registers(answers: int) -> None:
    """As many as the longest path takes, however many paths there are."""

    def grid(n: int) -> int:
        way = settled(n % answers)
        for k in range(2, 50):
            n = n * n % (1000 * way + k) + 1
        return n

    made = recorded(grid, range(1000, 1000 + answers))
    data = written(made)
    assert data is not None
    registers = struct.unpack_from(HEADER.format, data)[5]
    constants = struct.unpack_from(HEADER.format, data)[4]
    assert made.answers == answers
    assert registers - constants <= 4 * 50
    for size in range(1000, 1000 + answers):
        assert Tape(data).answer(((size,),), made.kernels) == made.answer(((size,),))


@pytest.mark.parametrize(("limit", "count"), [("MOST_REGISTERS", 5), ("MOST_INSTRUCTIONS", 6), ("MOST_WORDS", 7)])
def test_a_program_beyond_the_limit_is_not_written(monkeypatch: pytest.MonkeyPatch, limit: str, count: int) -> None:
    """Of registers, instructions or words; at the limit it is. The planner answers then."""
    made = recorded(lambda n: n * n % 7 + 1, [1000])
    data = written(made)
    assert data is not None
    least = struct.unpack_from(HEADER.format, data)[count]
    monkeypatch.setattr(tape, limit, least)
    assert written(made) == data
    monkeypatch.setattr(tape, limit, least - 1)
    assert written(made) is None
