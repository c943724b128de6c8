"""The law of launch programs: what one answers is what the planner answers, bit for bit."""

import random

from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.cuda.launch_programs import stored
from onnxfuse.cuda.launch_programs.family import Family, Key
from onnxfuse.cuda.launch_programs.tape import written
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic.operations import UnansweredError
from tests.support.kernels.tape_evaluator import Tape

Shapes = tuple[tuple[int, ...], ...]
OTHERS = (0, 1, 2, 3, 7, 8, 16, 31, 33, 64, 127, 128, 197, 768, 1025, 4096, 65537, 1_000_003)


def any_extents(shapes: Shapes) -> Key:
    """Return the family of all shapes of these ranks."""
    return Key(tuple(map(len, shapes)), (None,) * sum(map(len, shapes)))


def plan(op: FusedOp, shapes: Shapes, aligned: bool, arch: Arch) -> LaunchPlan | None:
    """Return the planner's answer, None where it has none."""
    try:
        return dispatch.plan(op, shapes, aligned, arch)
    except KernelError:
        return None


def others(shapes: Shapes, count: int) -> list[Shapes]:
    """Return shapes like these: each extent, wherever it stands, is another one, or some of them are."""
    chance = random.Random(repr(shapes))
    found = []
    for _ in range(count):
        extents = sorted({n for s in shapes for n in s})
        some = chance.sample(extents, chance.randint(1, max(len(extents), 1))) if extents else []
        to = {n: chance.choice(OTHERS) for n in some}
        found.append(tuple(tuple(to.get(n, n) for n in s) for s in shapes))
    return found


def agrees(op: FusedOp, shapes: Shapes, aligned: bool, arch: Arch, count: int = 2) -> Family:
    """Check the program of `op`, recorded for these shapes, on them and on others like them; return it."""
    made = dispatch.family(op, any_extents(shapes), aligned, arch)
    answered: list[tuple[Shapes, LaunchPlan | None]] = []
    for now in (shapes, *others(shapes, count)):
        expected, answer = plan(op, now, aligned, arch), made.answer(now)
        if answer is None:
            answer = recorded(made, now, expected)
            if answer is None:
                continue
        assert answer == expected, f"{now} of {shapes}: {difference(answer, expected)}"
        answered.append((now, expected))
    if answered:
        data = written(made)
        assert data is not None, "a program too large for the engine"
        tape = Tape(data)
        for now, expected in answered:
            by_tape = tape.answer(now, made.kernels)
            assert by_tape == expected, f"{now} of {shapes}, by the tape: {difference(by_tape, expected)}"
        again = stored.loaded(stored.dumped(made), made.key, made.plan)
        assert stored.dumped(again) == stored.dumped(made)
        assert [again.answer(now) for now, _ in answered] == [expected for _, expected in answered]
    return made


def recorded(made: Family, shapes: Shapes, expected: LaunchPlan | None) -> LaunchPlan | None:
    """Record the shapes and return the answer for them; None where there is no plan, or no 64 bits for it."""
    try:
        made.record(shapes)
    except KernelError:
        assert expected is None, f"{shapes}: no plan as it is recorded"
        return None
    except UnansweredError:
        return None
    return made.answer(shapes)


def difference(answer: LaunchPlan | None, expected: LaunchPlan | None) -> str:
    """Return in which fields two plans differ, or which of the two is missing."""
    if answer is None or expected is None:
        return f"{'no answer' if answer is None else 'an answer'}, {'no plan' if expected is None else 'a plan'}"
    return launch_plan.difference(answer, expected)
