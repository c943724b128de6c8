"""The pool of scratch memory of a stream, on the stand-in CUDA libraries: what is allocated, kept and freed."""

import ctypes
import threading
import time
from typing import Any

import numpy as np

from onnxfuse import runtime
from tests.support import fused_models as models
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda
from tests.unit.runtime.sessions.test_inference import CUDA, chain_error

STREAM = 4096
"""The number of a stream that the caller made."""


def on_stream(stream: int = STREAM) -> list[Any]:
    return [("CUDAExecutionProvider", {"user_compute_stream": str(stream)}), "CPUExecutionProvider"]


def boundaries(kernels: stand_in_kernels.StandInKernels) -> set[int]:
    return {launch.scratch + kernels.counter_bytes for launch in kernels.launched}


def of_two_sessions() -> Any:
    kernels = stand_in_kernels.install(scratch_bytes=1000, counter_bytes=256)
    sessions = [runtime.session(models.chain(), on_stream()) for _ in range(2)]
    errors = [chain_error(session, rows) for session in sessions for rows in (3, 4, 5)]
    return {"errors": errors, "scratch": len(boundaries(kernels)), "launched": len(kernels.launched)}


def test_all_ops_and_sessions_on_a_stream_share_one_scratch_memory(on_fake_cuda: FakeCuda) -> None:
    """Whatever the shapes: counters are zeros in front of each launch, the data is spoiled by the launch before."""
    facts = on_fake_cuda(of_two_sessions)
    assert max(facts["errors"]) < 1e-6
    assert (facts["launched"], facts["scratch"]) == (18, 1)
    assert [one["bytes"] for one in on_fake_cuda.trace("cuMemAlloc")] == [2 * 4096]


def of_two_streams() -> Any:
    kernels = stand_in_kernels.install(scratch_bytes=1000)
    for stream in (STREAM, 2 * STREAM):
        chain_error(runtime.session(models.chain(), on_stream(stream)))
        kernels.scratch_bytes += 1
    return [launch.scratch for launch in kernels.launched]


def test_streams_have_scratch_memory_of_their_own(on_fake_cuda: FakeCuda) -> None:
    """Their launches run at the same time."""
    on_fake_cuda(of_two_streams)
    assert len(on_fake_cuda.trace("cuMemAlloc")) == 2


def grows() -> Any:
    """A text's cache grows by a row with each run, and so does the scratch memory; then shorter ones come."""
    kernels = stand_in_kernels.install(counter_bytes=16)
    session = runtime.session(models.chain(), CUDA)
    for row in (*range(1, 1001), 3, 700):
        kernels.scratch_bytes, kernels.counter_bytes = 4000 * row, 16 * (1 + row % 8)
        assert chain_error(session, row) < 1e-6
    del session


def test_scratch_memory_grows_by_few_steps_and_is_never_held_twice(on_fake_cuda: FakeCuda) -> None:
    """What it has grown out of is freed before; at the end an eighth more than is needed, and nothing afterwards."""
    on_fake_cuda(grows)
    calls = on_fake_cuda.trace("cuMemAlloc", "cuMemFree")
    assert [one["call"] for one in calls] == ["cuMemAlloc", "cuMemFree"] * (len(calls) // 2)
    assert len(calls) // 2 < 90
    assert 4_000_000 < calls[-2]["bytes"] < 1.14 * 4_000_000
    assert all(free["address"] == made["address"] for made, free in zip(calls[::2], calls[1::2], strict=True))


def captured() -> Any:
    kernels = stand_in_kernels.install(scratch_bytes=1 << 16)
    session = runtime.session(models.chain(), on_stream())
    capture = ctypes.CDLL("libcuda.so.1").fake_capture
    chain_error(session, 3)
    capture(True)
    chain_error(session, 3)
    capture(False)
    in_graph = {launch.scratch for launch in kernels.launched}
    for rows in (4, 5, 6):
        kernels.scratch_bytes *= 2
        chain_error(session, rows)
    other = runtime.session(models.chain(), on_stream())
    kernels.scratch_bytes = 64
    chain_error(other, 3)
    ctypes.CDLL("libcuda.so.1").fake_mark(b"the session with the graph ends")
    del session
    ctypes.CDLL("libcuda.so.1").fake_mark(b"the last session ends")
    del other
    return [*in_graph]


def test_what_a_graph_was_given_stays_until_the_last_session_of_the_stream_ends(on_fake_cuda: FakeCuda) -> None:
    """The graph has its address, however the pool grows afterwards; other buffers go as it grows."""
    (in_graph,) = on_fake_cuda(captured)
    calls = on_fake_cuda.trace("cuMemAlloc", "cuMemFree", "the session with the graph ends", "the last session ends")
    names = [one["call"] for one in calls]
    last = names.index("the last session ends")
    assert names[:last].count("cuMemAlloc") == 4
    assert names[:last].count("cuMemFree") == 2
    assert in_graph not in [one["address"] for one in calls[:last] if one["call"] == "cuMemFree"]
    assert sorted(names[last + 1 :]) == ["cuMemFree"] * 2
    assert in_graph in [one["address"] for one in calls[last + 1 :]]


def grows_in_a_capture() -> Any:
    kernels = stand_in_kernels.install(scratch_bytes=1 << 16)
    session = runtime.session(models.chain(), CUDA)
    chain_error(session, 3)
    ctypes.CDLL("libcuda.so.1").fake_capture(True)
    kernels.scratch_bytes *= 4
    chain_error(session, 4)
    ctypes.CDLL("libcuda.so.1").fake_mark(b"the session ends")
    del session


def test_nothing_is_freed_while_a_graph_is_captured(on_fake_cuda: FakeCuda) -> None:
    """Launches before it may still run, and nothing can wait for them."""
    on_fake_cuda(grows_in_a_capture)
    calls = [one["call"] for one in on_fake_cuda.trace("cuMemAlloc", "cuMemFree", "the session ends")]
    assert calls == ["cuMemAlloc", "cuMemAlloc", "the session ends", "cuMemFree", "cuMemFree"]


class Slow(list[Any]):
    """What was launched, by threads that would like to take turns."""

    def append(self, one: Any) -> None:
        super().append(one)
        time.sleep(0.002)


def from_threads() -> Any:
    kernels = stand_in_kernels.install(launches=3, scratch_bytes=64, launched=Slow())
    model = models.model("one (float[N, 8] x) => (float[N, 8] y) { y = onnxfuse.Negate_3 (x) }", models.NEGATE)
    sessions = [runtime.session(model, on_stream()) for _ in range(3)]
    feeds = [{"x": np.full((rows, 8), 1, np.float32)} for rows in (2, 3, 4)]
    for session, one in zip(sessions, feeds, strict=True):
        session.run(None, one)
    kernels.launched.clear()

    def work(number: int) -> None:
        for _ in range(10):
            sessions[number].run(None, feeds[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [launch.inputs[0] for launch in kernels.launched]


def test_plans_of_threads_on_one_stream_do_not_mix(on_fake_cuda: FakeCuda) -> None:
    """The launches of a plan hand on the scratch memory that all of them have."""
    pointers = on_fake_cuda(from_threads)
    assert len(pointers) == 3 * 10 * 3
    assert all(len(set(pointers[at : at + 3])) == 1 for at in range(0, len(pointers), 3))


def out_of_memory() -> Any:
    kernels = stand_in_kernels.install(scratch_bytes=1 << 16)
    session = runtime.session(models.chain(), CUDA)
    driver = ctypes.CDLL("libcuda.so.1")
    chain_error(session, 3)
    driver.fake_memory(ctypes.c_size_t(1 << 20))
    kernels.scratch_bytes = 1 << 21
    try:
        chain_error(session, 4)
    except Exception as error:
        message = str(error)
    kernels.scratch_bytes = 1 << 16
    return {"message": message, "after": [chain_error(session, rows) for rows in (3, 5)]}


def test_a_plan_for_which_there_is_no_memory_is_an_error_and_the_session_goes_on(on_fake_cuda: FakeCuda) -> None:
    facts = on_fake_cuda(out_of_memory)
    assert "allocating 2097152 bytes of scratch memory failed: CUDA_ERROR_OUT_OF_MEMORY" in facts["message"]
    assert "onnxfuse.BiasRelu_1 with inputs [4, 8] [8]" in facts["message"]
    assert max(facts["after"]) < 1e-6
