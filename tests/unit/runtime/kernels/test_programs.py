"""Launch programs in the bridge: they answer what the planner would, and it is asked for few shapes of many."""

import contextlib
import dataclasses
import itertools
import math
import random
import struct
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import products, rows
from bench.cases.ops import HALF
from onnxfuse import cuda, runtime
from onnxfuse.cuda.dispatch.measurements import key
from onnxfuse.cuda.launch_programs.family import Family
from onnxfuse.cuda.launch_programs.tape import ANSWER, HEADER, JUMP, MAGIC, MISS, NUMBERS, VERSION, bits_of, written
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.bridge import bridge
from onnxfuse.runtime.engine.launch import LaunchArguments, LaunchProgram, LoadedKernel
from onnxfuse.runtime.kernels import ahead_of_time, loader
from onnxfuse.runtime.kernels.programs import MOST_WAITING, Programs
from onnxfuse.symbolic.operations import OPERATIONS, UnansweredError
from tests.support import fused_models as models
from tests.support import growth
from tests.support.kernels import programs
from tests.support.scenarios import FakeCuda
from tests.support.small import optimize, parse
from tests.unit.runtime.sessions.test_any_shapes import LINEAR

H200 = Arch("sm_90a", 132)
ROW = np.zeros((1, 5, 8), np.float32)
"""Of LINEAR's inputs."""


def program(family: Family) -> LaunchProgram:
    """Return the program of a family whose kernels' functions are their numbers, from 1 on."""
    tape = written(family)
    assert tape is not None
    found = tuple(LoadedKernel(n + 1, True, None) for n in range(len(family.kernels)))
    return LaunchProgram(0, tape, found, ())


def facts(plan: LaunchPlan, family: Family) -> dict[str, Any]:
    """Return the plan as the bridge tells it."""
    maps = []
    for m in plan.tensor_maps:
        window = ((), (), ()) if m.window is None else (m.window.lower, m.window.upper, m.window.strides)
        lists = map(list, (m.extents, m.strides, m.box, *window))
        maps.append((m.pointer, m.offset, m.dtype, m.to_tf32, *lists))
    return {
        "function": family.numbers[plan.kernel] + 1, "grid": list(plan.grid), "block": list(plan.block),
        "shared_bytes": plan.shared_bytes, "parameters": plan.parameters,
        "output_shapes": [list(s) for s in plan.output_shapes], "tensor_maps": maps,
        "scratch_bytes": plan.scratch_bytes, "counter_bytes": plan.counter_bytes,
        "then": [facts(after, family) for after in plan.then],
    }  # fmt: skip


def _row(name: str, *_: Any) -> tuple[FusedOp, Sequence[tuple[int, ...]]]:
    return rows.TEMPLATES[name].op(HALF), rows.TEMPLATES[name].small


BODIES: dict[str, Callable[..., tuple[FusedOp, Sequence[tuple[int, ...]]]]] = {
    "gelu": lambda m, n, k: products.case(products.GELU, HALF, m, n, k),
    "heads": lambda m, n, k: products.case(products.RESIDUAL, HALF, m, n, k),
    **{name: partial(_row, name) for name in sorted(rows.TEMPLATES)},
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(BODIES)), st.integers(1, 40), st.integers(1, 520), st.booleans())
def test_the_bridge_evaluates_as_the_planner_plans(name: str, batch: int, length: int, aligned: bool) -> None:
    """Bit for bit: grid, block, parameters, tensor maps, scratch memory, shapes."""
    op, shapes = BODIES[name]((batch, length), 3072, 768)
    family = programs.agrees(op, tuple(map(tuple, shapes)), aligned, H200)
    if not family.kernels:
        return
    made = program(family)
    asked = 0
    for now in (tuple(map(tuple, shapes)), *programs.others(tuple(map(tuple, shapes)), 6)):
        found, expected = bridge().evaluated(made, now), programs.plan(op, now, aligned, H200)
        assert (found is None) == (family.answer(now) is None)
        if found is not None:
            assert expected is not None
            assert found == facts(expected, family)
            asked += 1
    assert asked


@pytest.fixture(scope="module")
def sound() -> tuple[LaunchProgram, Any]:
    """A program, and shapes that it answers for."""
    op, shapes = products.case(products.GELU, HALF, (2, 33), 768, 768)
    return program(programs.agrees(op, tuple(map(tuple, shapes)), True, H200, 0)), shapes


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_byte_of_a_program_leads_astray(sound: tuple[LaunchProgram, Any], data: st.DataObject) -> None:
    """What is damaged is refused, or evaluates to something; nothing beside it is read."""
    made, shapes = sound
    tape = bytearray(made.tape)
    for _ in range(data.draw(st.integers(1, 4))):
        word = data.draw(st.integers(0, len(tape) // 4 - 1))
        struct.pack_into(
            "<I", tape, 4 * word, data.draw(st.sampled_from([0, 1, 2, 15, 16, 40, 41, 255, 2**16, 2**31, 2**32 - 1]))
        )
    damaged = dataclasses.replace(made, tape=bytes(tape[: data.draw(st.sampled_from([len(tape), 3, HEADER.size]))]))
    with contextlib.suppress(RuntimeError):
        bridge().evaluated(damaged, shapes)


ANSWERED = (0, *[0] * 8, 0, 32, 0, 0, 0, 0)
"""Kernel 0, whose numbers are all register 0: no parameters, no outputs, no tensor maps, nothing after it."""


def tape_of(code: Sequence[tuple[int, ...]], registers: int = 1, kernels: int = 1) -> bytes:
    """Return a program for one scalar, with a constant where there is a register, and the words of an answer."""
    head = HEADER.pack(MAGIC, VERSION, 1, 0, registers, registers, len(code), len(ANSWERED), kernels, 0)
    words = [0, *(word for instruction in code for word in instruction), *ANSWERED]
    return head + struct.pack(f"<{registers}q", *[1] * registers) + struct.pack(f"<{len(words)}I", *words)


@pytest.mark.parametrize(
    ("tape", "told"),
    [
        (tape_of([(MISS, 0, 0, 0, 0)], registers=0), "another size"),
        (b"OFLP", "cut off"),
        (HEADER.pack(MAGIC, VERSION + 1, *[0] * 8), f"of version {VERSION + 1}, expected {VERSION}"),
        (tape_of([(MISS, 0, 2**31, 0, 0)]), "an instruction out of range"),
        (tape_of([(MISS, 0, 0, 1, 0)]), "an instruction out of range"),
        (tape_of([(ANSWER, 2**20, 0, 0, 0)]), "an instruction out of range"),
        (tape_of([(ANSWER, 0, 0, 2**30, 0)]), "an instruction out of range"),
        (tape_of([(JUMP, 1, 0, 0, 1), (MISS, 0, 0, 0, 0)]), "an instruction out of range"),
        (tape_of([(15, 0, 0, 0, 0), (MISS, 0, 0, 0, 0)]), "an instruction out of range"),
        (tape_of([(NUMBERS["floor"] + 1, 0, 0, 0, 0), (MISS, 0, 0, 0, 0)]), "an instruction out of range"),
        (tape_of([(NUMBERS["add"], 0, 0, 0, 0)]), "without an end"),
        (tape_of([(JUMP, 0, 0, 0, 0), (MISS, 0, 0, 0, 0)]), "a jump out of range"),
        (tape_of([(ANSWER, 0, 0, 0, 0)], kernels=0), "a kernel out of range"),
        (tape_of([(ANSWER, 0, 0, 0, len(ANSWERED) - 1)]), "ends too early"),
        (tape_of([(ANSWER, 0, 0, 0, 0)] * 2), "answers that overlap"),
    ],
)
def test_what_every_instruction_reads_is_in_its_bounds(tape: bytes, told: str) -> None:
    """Those too that compute nothing: the evaluator reads two registers before it looks at what it is to do."""
    with pytest.raises(RuntimeError, match=told):
        bridge().unanswered(tape, struct.pack("<q", 0), 1)
    assert bridge().unanswered(tape_of([(ANSWER, 0, 0, 0, 0)]), struct.pack("<q", 0), 1) == []
    assert bridge().unanswered(tape_of([(MISS, 0, 0, 0, 0)]), struct.pack("<q", 0), 1) == [0]


LEAST = -(2**63)
INTEGERS = (0, 1, -1, 2, -7, 31, 32, 33, 62, 63, 64, -(2**31), 2**31 - 1, 2**32, 2**53 + 1, LEAST, 2**63 - 1)
REALS = (0.0, -0.0, 0.5, -2.5, 0.125, 2.675, -1.005, 1 / 3, 1e12, 2.0**40, -(2.0**53), 1e300, math.inf, math.nan)


def operations(op: str) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """Yield all tuples of odd numbers that an operation takes, each with a program whose parameter is the result."""
    kinds: list[tuple[Any, ...]] = [REALS if kind == "r" else INTEGERS for kind in OPERATIONS[op].takes]
    if op == "round":
        kinds[1] = (1, 2, 3)
    if len(kinds) == 3:
        kinds[0] = (0, 1, -1)
    for operands in itertools.product(*kinds):
        count = len(operands)
        registers = (*range(count), 0, 0)[:3]
        code = ((NUMBERS[op], count, *registers), (ANSWER, 0, 0, 0, 0))
        # The numbers of the launch are register 0's; its one parameter of 64 bits is the result.
        answer = (0, *[count + 1] * 9, 64, 1, count, 0, 0, 0)
        words = (0, *(word for instruction in code for word in instruction), *answer)
        tape = (
            HEADER.pack(MAGIC, VERSION, 1, 0, count + 2, count + 2, len(code), len(answer), 1, 0)
            + struct.pack(f"<{count + 2}q", *map(bits_of, operands), 0, 1)
            + struct.pack(f"<{len(words)}I", *words)
        )
        yield operands, tape


@pytest.mark.parametrize("op", NUMBERS)
def test_an_operation_of_the_engine_is_that_of_python(op: str) -> None:
    """Each of all pairs of odd numbers, to the last bit; what has no answer in 64 bits has none in C++ either.

    Of the least integer, which has no opposite, it may have none where Python has one: then the planner is asked.
    """
    how = OPERATIONS[op]
    kernel = (LoadedKernel(1, True, None),)
    for operands, tape in operations(op):
        try:
            result = how.evaluate(*operands)
            expected = struct.pack("<d" if how.gives == "r" else "<q", result)
        except (UnansweredError, struct.error):
            expected = None
        found = bridge().evaluated(LaunchProgram(0, tape, kernel, ()), ((),))
        got = None if found is None else found["parameters"]
        if got is None and LEAST in operands:
            continue
        if how.gives == "r" and got is not None and expected is not None:
            (mine,), (theirs,) = struct.unpack("<d", got), struct.unpack("<d", expected)
            if math.isnan(mine) and math.isnan(theirs):
                continue
        assert got == expected, f"{op} {operands}"


# ---- sessions


def some_by_the_general_kernel() -> Any:
    growth.install()
    ahead_of_time.MOST_THREADS = 0
    session = runtime.session(optimize(parse(LINEAR))[0], growth.CUDA)

    def run(batch: int, beside: int) -> tuple[int, ...]:
        return session.run(None, {"x": ROW.repeat(batch, 0), "r": ROW.repeat(beside, 0)})[0].shape

    for batch in range(2, 40):
        run(batch, batch)
    known = sum(bridge().answers().values())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        shapes = [run(batch, 1) for batch in (4, 9, 4, 30)]
    after = sum(bridge().answers().values())
    run(40, 40)
    return {
        "known": known, "by programs among these": after - known, "shapes": shapes, "told": len(told),
        "calls": sum(runtime.calls().values()), "launches": sum(runtime.launches().values()),
        "and then": sum(bridge().answers().values()) - after,
    }  # fmt: skip


def test_what_the_general_kernel_takes_is_in_no_program_of_another(on_fake_cuda: FakeCuda) -> None:
    """A node whose shapes vary and for some of which its template has no kernel: each of them is asked for once."""
    found = on_fake_cuda(some_by_the_general_kernel)
    assert found["known"] > 20
    assert found["by programs among these"] == 0
    assert found["shapes"] == [[4, 5, 8], [9, 5, 8], [4, 5, 8], [30, 5, 8]]
    assert found["told"] == 3
    assert (found["calls"], found["launches"]) == (38 + 4 + 1, 38 + 4 * 2 + 1)
    assert found["and then"] == 1


def many_shapes() -> Any:
    growth.install()
    ahead_of_time.MOST_THREADS = 0  # what is asked for is counted, not what is planned ahead
    asked: list[str] = []
    plan = cuda.plan

    def counted(op: FusedOp, *rest: Any) -> LaunchPlan:
        asked.append(op.name)
        return plan(op, *rest)

    pytest.MonkeyPatch().setattr(cuda, "plan", counted)
    session = runtime.session(models.chain(), growth.CUDA)
    chance = random.Random(1)
    shapes = [session.run(None, growth.feeds(chance.randint(1, 4096)))[0].shape for _ in range(300)]
    return {
        "asked": len(asked),
        "answered": sum(bridge().answers().values()),
        "calls": sum(runtime.calls().values()),
        "right": all(s[1] == 8 for s in shapes),
    }


def test_few_of_many_shapes_are_planned(on_fake_cuda: FakeCuda) -> None:
    """300 lengths of a chain of ops; once each of them was planned for each op."""
    found = on_fake_cuda(many_shapes)
    assert found["right"]
    assert found["asked"] < 20
    assert found["answered"] > 200
    assert found["calls"] == 3 * 300


def test_what_one_process_learned_the_next_one_knows(on_fake_cuda: FakeCuda) -> None:
    """It plans a node's first shape and asks for the program with the second, of each op; no more."""
    first = on_fake_cuda(many_shapes)
    second = on_fake_cuda(many_shapes)
    assert second["right"]
    assert second["asked"] < first["asked"]
    assert second["asked"] <= 3 * 2


def eight_threads() -> Any:
    growth.install()
    session = runtime.session(models.chain(), growth.CUDA)
    wrong = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(200):
            count = chance.randint(1, 3000)
            if session.run(None, growth.feeds(count))[0].shape != (count, 8):
                wrong.append(count)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"wrong": wrong, "launches": sum(runtime.launches().values()), "answered": sum(bridge().answers().values())}


def test_threads_with_shapes_of_their_own(on_fake_cuda: FakeCuda) -> None:
    found = on_fake_cuda(eight_threads)
    assert found["wrong"] == []
    assert found["answered"] > 0
    assert found["launches"] % 1600 == 0


@pytest.mark.parametrize("same", [True, False])
def test_a_node_whose_shapes_stay_is_not_recorded(same: bool, on_fake_cuda: FakeCuda) -> None:
    """A model of fixed shapes pays for no programs, however many nodes and shapes it has."""
    found = on_fake_cuda(fixed if same else varying)
    assert found["programs"] == (0 if same else found["programs"])
    assert same or found["programs"] > 0


def _programs(lengths: list[int]) -> Any:
    growth.install()
    ahead_of_time.MOST_THREADS = 0  # a run waits until its program is recorded
    made: list[Any] = []
    family = cuda.cached_family

    def counted(*facts: Any) -> Any:
        made.append(facts)
        return family(*facts)

    pytest.MonkeyPatch().setattr(cuda, "cached_family", counted)
    session = runtime.session(models.chain(), growth.CUDA)
    for length in lengths:
        session.run(None, growth.feeds(length))
    return {"programs": len(made)}


def fixed() -> Any:
    return _programs([7, 7, 7])


def varying() -> Any:
    return _programs([7, 8])


def test_shapes_with_a_measured_variant_are_planned() -> None:
    """No program answers for them."""
    op, shapes = products.case(products.GELU, HALF, (2, 33), 768, 768)
    family = programs.agrees(op, tuple(map(tuple, shapes)), True, H200, 0)
    made = program(family)
    assert bridge().evaluated(made, shapes) is not None
    words = tuple(n for s in shapes for n in (len(s), *s))
    assert bridge().evaluated(dataclasses.replace(made, apart=(words,)), shapes) is None
    assert np.prod(words) > 0


def test_a_run_does_not_wait_for_its_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another thread records it, the next plan brings it; few plans wait to be recorded, and one thread records."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cuda, "arch_of", lambda device: H200)
    monkeypatch.setattr(cuda, "is_compiled", lambda kernel, device: True)
    monkeypatch.setattr(cuda, "load", lambda kernel, device: SimpleNamespace(kernel=SimpleNamespace(ptr=1)))
    op, first = products.case(products.GELU, HALF, (2, 33), 768, 768)

    def rows(count: int) -> programs.Shapes:
        return tuple(tuple(count if n == 33 else n for n in s) for s in first)

    varied = tuple(tuple(n == 33 for n in s) for s in first)
    learned, waiting = Programs(op), list[Callable[[], None]]()

    def asked(count: int) -> Any:
        plan = cuda.plan(op, rows(count), True, H200)
        return learned.learn(rows(count), True, 0, varied, plan, (), waiting.append)

    assert [asked(count) for count in range(40, 50)] == [None] * 10
    assert len(waiting) == MOST_WAITING
    while waiting:
        waiting.pop(0)()
    program = asked(60)
    assert bridge().evaluated(program, rows(41)) is not None
    assert len(waiting) == 1


def test_a_planner_keeps_what_was_measured_from_its_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variant that was fastest for some shapes runs for them, also where a program knows all others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cuda, "arch_of", lambda device: H200)
    monkeypatch.setattr(cuda, "is_compiled", lambda kernel, device: True)
    monkeypatch.setattr(cuda, "load", lambda kernel, device: SimpleNamespace(kernel=SimpleNamespace(ptr=1)))
    unnamed, first = products.case(products.GELU, HALF, (2, 33), 768, 768)
    op = dataclasses.replace(unnamed, name="Gelu_0123456789")

    def rows(count: int) -> programs.Shapes:
        return tuple(tuple(count if n == 33 else n for n in s) for s in first)

    varied = tuple(tuple(n == 33 for n in s) for s in first)
    variant = cuda.candidates(op, rows(33), H200)[1]
    plan = loader.planner(op, lambda device: {key(op.name, rows(33)): variant})
    general = plan(rows(40), True, 0, varied, None)
    assert isinstance(general, LaunchArguments)
    learned = general.program
    assert learned is not None
    assert bridge().evaluated(learned, rows(41)) is not None
    assert bridge().evaluated(learned, rows(33)) is None
    measured = plan(rows(33), True, 0, varied, None)
    assert isinstance(measured, LaunchArguments)
    assert measured.program is None
    assert measured.parameters == cuda.plan(op, rows(33), True, H200, variant).parameters
