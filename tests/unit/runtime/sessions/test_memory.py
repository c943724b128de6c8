"""What a session uses of the GPU's memory, its limit, and how its arena follows changing shapes.

ONNX Runtime's arena is the real one; the memory of the stand-in driver is the host's.
"""

from typing import Any

import numpy as np
import onnx
import onnxruntime

from onnxfuse import runtime
from onnxfuse.runtime.engine.bridge import bridge
from onnxfuse.runtime.sessions import memory
from onnxfuse.support.errors import DeviceError, MemoryLimitError, UsageError
from tests.support import fused_models as models
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda
from tests.unit.runtime.sessions.test_inference import CUDA, chain_error, message_of

PAGES = """pages (float[N, 8] x, float[8] w) => (float[N, 8] y) {
    a = Concat <axis = 1> (x, x, x, x)
    b = Relu (a)
    c = Concat <axis = 1> (b, b)
    d = Neg (c)
    e = Add (c, d)
    axis = Constant <value_ints = [1]> ()
    f = ReduceMean (e, axis)
    g = Add (x, f)
    h = Add (g, w)
    y = onnxfuse.Negate_3 (h)
}"""
"""Values of 8, 32 and 64 columns: those of a larger shape do not fit the pieces that smaller ones left."""
WEIGHTS = np.arange(8, dtype=np.float32)


def pages() -> onnx.ModelProto:
    model = models.model(PAGES, models.NEGATE)
    model.graph.input.pop()
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS, "w"))
    return model


def session(**options: Any) -> runtime.Session:
    return runtime.session(pages(), CUDA, **options)


def rows_of(megabytes: int) -> int:
    return megabytes * 1_000_000 // 32


def run(opened: runtime.Session, megabytes: int) -> None:
    opened.run(None, {"x": np.zeros((rows_of(megabytes), 8), np.float32)})


def stream(consolidates: bool) -> dict[str, Any]:
    stand_in_kernels.install()
    opened, alone = session(), session()
    assert opened.keeper is not None
    assert alone.keeper is not None
    opened.keeper.consolidates = alone.keeper.consolidates = consolidates
    for _ in range(3):
        run(alone, 12)
    for megabytes in (3, 5, 4, 7, 6, 9, 3, 8, 12, 11, 10, 5, 12):
        run(opened, megabytes)
    use = opened.memory()
    return {"arena": use.arena, "alone": alone.memory().arena, "steps": len(use.steps), "peak": use.activations}


def kept_near() -> Any:
    return stream(consolidates=True)


def left_alone() -> Any:
    return stream(consolidates=False)


def test_a_stream_of_changing_shapes_takes_a_fifth_more_than_its_largest_at_most(on_fake_cuda: FakeCuda) -> None:
    """The same arena takes more where nobody looks after it."""
    kept, left = on_fake_cuda(kept_near), on_fake_cuda(left_alone)
    assert kept["arena"] <= 1.2 * kept["alone"]
    assert kept["arena"] <= 1.2 * kept["peak"]
    assert left["arena"] > 1.2 * kept["arena"]


def of_one_shape() -> Any:
    stand_in_kernels.install()
    model = pages()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = rows_of(8)
    opened = runtime.session(model, CUDA)
    sizes = []
    for _ in range(8):
        run(opened, 8)
        sizes.append(opened.memory().arena)
    return {"arena": sizes, "peak": opened.memory().activations}


def test_memory_that_is_planned_for_a_shape_replaces_that_of_its_first_run(on_fake_cuda: FakeCuda) -> None:
    """The second run of a model of fixed shapes allocates all values in one piece, besides what the first one left."""
    facts = on_fake_cuda(of_one_shape)
    assert facts["arena"][1] > 1.5 * facts["arena"][0]
    assert facts["arena"][-1] <= 1.2 * facts["peak"]
    assert facts["arena"][-1] == facts["arena"][-2]


def use_of_a_session() -> Any:
    kernels = stand_in_kernels.install(scratch_bytes=10_000, counter_bytes=16)
    opened = session()
    before = opened.memory().as_dict()
    run(opened, 3)
    after = opened.memory()
    kernels.scratch_bytes = 20_000
    run(opened, 4)
    return {"before": before, "after": after.as_dict(), "text": f"{after}", "last": opened.memory().as_dict()}


def test_a_session_says_what_it_uses_and_which_shapes_made_it_grow(on_fake_cuda: FakeCuda) -> None:
    facts = on_fake_cuda(use_of_a_session)
    before, after, last = facts["before"], facts["after"], facts["last"]
    assert (before["workspaces"], before["activations"], before["steps"]) == (0, 0, [])
    assert before["weights"] >= WEIGHTS.nbytes
    assert after["workspaces"] == 4096 + 3 * 4096
    assert last["workspaces"] == 4096 + 5 * 4096
    assert 2 * 8 * 3_000_000 <= after["activations"] <= after["arena"]  # two values of 64 columns at a time
    assert [step["shapes"]["x"] for step in last["steps"][::2][:1]] == [[rows_of(3), 8]]
    assert after["total"] == after["arena"] + after["workspaces"] + after["kernels"] + after["graphs"]
    assert "workspaces 16.4 kB" in facts["text"]


def within_a_limit() -> Any:
    stand_in_kernels.install()
    opened = session(memory_limit=400_000_000)
    for megabytes in (2, 4, 6, 8):
        run(opened, megabytes)
    message = message_of(MemoryLimitError, run, opened, 40)
    run(opened, 8)
    return {"message": message, "arena": opened.memory().arena, "weights": message_of(
        MemoryLimitError, session, memory_limit=8)}  # fmt: skip


def test_what_cannot_fit_is_an_error_that_says_what_would_and_the_session_goes_on(on_fake_cuda: FakeCuda) -> None:
    facts = on_fake_cuda(within_a_limit)
    assert "memory_limit is 400000000: of 350 MB for weights and values" in facts["message"]
    assert f"or inputs no larger than x {rows_of(8)}x8, which fit" in facts["message"]
    least = int(facts["message"].split("memory_limit=")[1].split()[0])
    assert least > 40 * 8 * 1_000_000
    assert facts["arena"] <= 350_000_000
    assert "memory_limit is 8" in facts["weights"]


def scratch_within_a_limit() -> Any:
    kernels = stand_in_kernels.install(scratch_bytes=100_000)
    kernels.smaller = 50_000
    opened = runtime.session(models.chain(), CUDA, memory_limit=8 * 60_000_000)
    assert opened.keeper is not None
    opened.keeper.limit = memory.MemoryLimit(8 * 60_000)  # of scratch memory alone
    bridge().limit_scratch(opened.keeper.ops, 60_000)
    errors = [chain_error(opened, rows) for rows in (3, 4)]
    taken = opened.memory().workspaces
    kernels.smaller = 0
    return {"errors": errors, "taken": taken, "message": message_of(MemoryLimitError, chain_error, opened, 5)}


def test_plans_that_need_less_scratch_memory_are_taken(on_fake_cuda: FakeCuda) -> None:
    """And where there is none, what would be enough is said."""
    facts = on_fake_cuda(scratch_within_a_limit)
    assert max(facts["errors"]) < 1e-6
    assert facts["taken"] < 60_000
    assert "BiasRelu_1 needs 100 kB of scratch memory" in facts["message"]
    assert "memory_limit leaves 60 kB" in facts["message"]
    assert "memory_limit=800000 is enough" in facts["message"]


def refused() -> Any:
    stand_in_kernels.install()
    both = [("CUDAExecutionProvider", {"gpu_mem_limit": "1000"}), "CPUExecutionProvider"]
    on_cpu = runtime.session(pages(), ["CPUExecutionProvider"])
    return {
        "both": message_of(UsageError, runtime.session, pages(), both, memory_limit=1 << 20),
        "cpu": message_of(UsageError, on_cpu.memory),
        "is_device_error": issubclass(MemoryLimitError, DeviceError),
    }


def test_two_limits_and_the_memory_of_a_cpu_are_refused(on_fake_cuda: FakeCuda) -> None:
    facts = on_fake_cuda(refused)
    assert "memory_limit and the provider option gpu_mem_limit are both given" in facts["both"]
    assert "no fused op of it runs as a kernel" in facts["cpu"]
    assert facts["is_device_error"]


def with_options_of_the_caller() -> Any:
    stand_in_kernels.install()
    opened = session()
    options = onnxruntime.RunOptions()
    for megabytes in (3, 5, 8, 8):
        opened.run(None, {"x": np.zeros((rows_of(megabytes), 8), np.float32)}, options)
    grown = opened.memory().arena
    run(opened, 8)
    return [grown, opened.memory().arena, message_of(RuntimeError, options.get_run_config_entry, memory.SHRINK)]


def test_run_options_of_the_caller_are_left_as_they_were(on_fake_cuda: FakeCuda) -> None:
    """So the next run without options is the one that returns memory."""
    grown, after, message = on_fake_cuda(with_options_of_the_caller)
    assert after < grown
    assert "does not have configuration" in message
