"""Kernels are compiled before they are asked for: at once where shapes are known, else from the first op's on."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import onnx
import pytest

from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.dispatch.measurements import key
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.runtime import session
from onnxfuse.runtime.kernels import ahead_of_time as module
from onnxfuse.runtime.kernels.ahead_of_time import AheadOfTime
from onnxfuse.runtime.kernels.variants import Variants
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic.parsing import parsed
from tests.support import fused_models as models
from tests.support import growth
from tests.support.scenarios import FakeCuda

H200 = Arch("sm_90a", 132)


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test began ends with it: its threads would compile by the next one's compiler."""
    yield
    for thread in threading.enumerate():
        if thread.name == "onnxfuse compiles":
            thread.join(20)
            assert not thread.is_alive()


class Compiler:
    """Counts what is compiled, by which threads, and how many at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[str] = []
        self.threads: set[int] = set()
        self.now, self.most = 0, 0
        self.until: threading.Event | threading.Barrier | None = None
        monkeypatch.setattr(cuda, "compile", self.compile)
        monkeypatch.setattr(cuda, "arch_of", lambda device: H200)
        monkeypatch.setattr(os, "cpu_count", lambda: 4)

    def compile(self, kernel: cuda.KernelSource, arch: Arch) -> bytes:
        self.entries.append(kernel.entry)
        self.threads.add(threading.get_ident())
        self.now += 1
        self.most = max(self.most, self.now)
        if self.until is None:
            time.sleep(0.05)
        else:
            self.until.wait(20)
        self.now -= 1
        return b""

    def wait_for(self, count: int) -> None:
        for _ in range(400):
            if len(self.entries) >= count:
                return
            time.sleep(0.01)
        raise AssertionError(f"{len(self.entries)} kernels, expected {count}")


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(400):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("not within 4 s")


def made(dims: str, variants: Variants = lambda device: {}) -> AheadOfTime:
    """Return what compiles ahead for three ops, one after the other, on inputs of these dimensions."""
    graph = f"""chain (float[{dims}, 8] x, float[8] b) => (float[{dims}, 8] y) {{
      s = onnxfuse.BiasRelu_1 (x, b) t = onnxfuse.Negate_3 (s) y = onnxfuse.BiasRelu_1 (t, b) }}"""
    model = models.model(graph, models.BIAS_RELU, models.NEGATE)
    return AheadOfTime(model, fused_ops(model), variants)


def test_what_is_known_is_compiled_at_once_on_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, whoever asks for it; none by the thread that opens the session."""
    compiler = Compiler(monkeypatch)
    compiler.until = threading.Barrier(2)  # neither goes on before the other has begun
    ahead = made("3")
    ahead.start(0)
    compiler.wait_for(2)
    assert threading.get_ident() not in compiler.threads
    for op in ahead.ops.values():
        shapes = ((3, 8), (8,))[: len(op.inputs)]
        assert ahead.plan(op, shapes, True, 0, None) == cuda.plan(op, shapes, True, H200)
    assert sorted(compiler.entries) == sorted(set(compiler.entries))
    assert len(compiler.entries) == 2


def test_a_total_length_is_planned_by_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run asks for it whose caches grow: a scalar on the CPU comes as an extent."""
    compiler = Compiler(monkeypatch)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float16[1,1,64] x, float16[1,1,12,16] past_k, float16[1,1,12,16] past_v, int32[1] lengths, int32 total)
    => (float16[1,1,32] y, float16[1,1,T,16] present_k, float16[1,1,T,16] present_v) {
      y, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1>
        (x, , , past_k, past_v, lengths, total)
    }""")
    pipeline.run(model)
    ahead = AheadOfTime(model, fused_ops(model), lambda device: {})
    ahead.start(0)
    compiler.wait_for(1)
    (op,) = ahead.ops.values()
    cache = (1, 1, 12, 16)
    assert {shapes for _, shapes, *_ in ahead.jobs} == {((1, 1, 64), cache, cache, (1,), (13,))}
    asked = ((1, 1, 64), cache, cache, (1,), (13,))
    assert ahead.plan(op, asked, True, 0, None) == cuda.plan(op, asked, True, H200)


def test_the_variant_that_was_measured_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch)
    shapes, narrow = ((3, 8), (8,)), PointwiseVariant(width=1)
    ahead = made("3", lambda device: {key("BiasRelu_1", shapes): narrow})
    ahead.start(0)
    compiler.wait_for(2)
    assert {tuning for name, *_, tuning in ahead.jobs if name == "BiasRelu_1"} == {narrow}


def test_the_first_op_of_a_run_tells_the_shapes_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch)
    ahead = made("N")
    ahead.start(0)
    wait_until(lambda: bool(ahead.names))
    first, second = ahead.ops.values()
    assert not compiler.entries
    ahead.plan(first, ((5, 8), (8,)), True, 0, None)
    compiler.wait_for(2)
    assert ahead.plan(second, ((5, 8),), True, 0, None) == cuda.plan(second, ((5, 8),), True, H200)


def test_a_run_is_told_apart_by_extents_that_a_network_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stream of sizes only the ops are asked for whose launch programs do not answer: not those at the input."""
    compiler = Compiler(monkeypatch)
    ahead = made("N")
    ahead.start(0)
    wait_until(lambda: not ahead.threads)
    first, second = ahead.ops.values()
    rounded, whole = parsed("(N-1)//2+1"), parsed("N")
    ahead.places = {first.name: [((whole, 8), (8,))], second.name: [((rounded, 8),)]}
    ahead.plan(second, ((5, 8),), True, 0, None)
    compiler.wait_for(2)
    assert {shapes[0][0] for _, shapes, *_ in ahead.jobs} == {5, 10}


def test_sizes_that_change_are_guessed_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, from the second run on: sizes below, between and above. Those of another run come first."""
    compiler = Compiler(monkeypatch)
    compiler.until = threading.Event()
    compiler.until.set()
    ahead = made("N")
    ahead.start(0)
    wait_until(lambda: not ahead.threads)
    first = next(iter(ahead.ops.values()))
    ahead.plan(first, ((16, 8), (8,)), True, 0, None)
    wait_until(lambda: not ahead.threads)
    assert not ahead.guesses
    ahead.plan(first, ((64, 8), (8,)), True, 0, None)
    wait_until(lambda: not ahead.threads)
    assert {shapes[0][0] for _, shapes, *_ in ahead.guesses} == {16, 32, 128}
    ahead.plan(first, ((640, 8), (8,)), True, 0, None)
    wait_until(lambda: not ahead.threads)
    assert len(ahead.guesses) == 6


def test_guesses_leave_half_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """And begin after all that a run waits for, which does not wait for them."""
    Compiler(monkeypatch)
    ahead = made("3")
    order: list[int] = []
    ahead.threads = 4  # none begins
    for n in (1, 2, 3):
        ahead._push(module.GUESS, 0, None, partial(order.append, -n))
        ahead._push(module.COMPILE, 0, None, partial(order.append, n))
    ahead.threads = 1
    ahead._work()
    assert order == [1, 2, 3, -1, -2, -3]
    ahead.guessing, ahead.threads = 2, 1
    with ahead.lock:
        ahead.waiting.append(module._Task(module.GUESS, 0, 0, None, lambda: None))
    assert ahead._next() is None


def test_long_kernels_are_compiled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    ahead = made("3")
    ahead.start(0)
    compiler.wait_for(2)
    by_length = sorted(
        (cuda.plan(op, ((3, 8), (8,))[: len(op.inputs)], True, H200).kernel for op in ahead.ops.values()),
        key=lambda kernel: -len(kernel.text),
    )
    assert compiler.entries == [kernel.entry for kernel in by_length]


def test_plans_that_nobody_asks_for_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program answers for most shapes of a stream."""
    compiler = Compiler(monkeypatch)
    compiler.until = threading.Event()
    compiler.until.set()
    ahead = made("N")
    ahead._prepare(0)
    first = next(iter(ahead.ops.values()))
    for rows in range(1, 3 * module.MOST_JOBS):
        ahead.plan(first, ((rows, 8), (8,)), True, 0, None)
    assert len(ahead.jobs) <= module.MOST_JOBS
    ahead.stop()


def test_an_op_without_a_plan_is_told_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch)

    def refuse(*facts: Any) -> Any:
        raise KernelError("no kernel", "")

    monkeypatch.setattr(cuda, "plan", refuse)
    ahead = made("3")
    ahead.start(0)
    with pytest.raises(KernelError, match="no kernel"):
        ahead.plan(next(iter(ahead.ops.values())), ((3, 8), (8,)), True, 0, None)
    assert not compiler.entries


def test_what_is_not_begun_when_the_options_go_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    go_on = threading.Event()
    compiler.until = go_on
    ahead = made("3")
    ahead.start(0)
    compiler.wait_for(1)
    ahead.stop()
    go_on.set()
    for _ in range(400):
        if not ahead.threads:
            break
        time.sleep(0.01)
    assert (ahead.threads, len(compiler.entries)) == (0, 1)


def one_session() -> Any:
    growth.install()
    begun = time.perf_counter()
    opened = session(models.chain(), growth.CUDA)
    y = opened.run(None, growth.feeds(3))[0]
    return {"shape": y.shape, "seconds": time.perf_counter() - begun}


def test_a_session_runs_with_it(on_fake_cuda: FakeCuda) -> None:
    assert on_fake_cuda(one_session)["shape"] == [3, 8]
