"""Sessions on a real GPU: fused models on CUDA against the same models on the CPU, where the bodies run."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import onnxfuse
from onnxfuse import runtime
from tests.support import fused_models as models
from tests.support.small import optimize, parse
from tests.unit.passes.alignment.test_pad_heads import packed
from tests.unit.passes.test_pipeline import WRONG
from tests.unit.runtime.sessions.test_any_shapes import IMAGES, LINEAR

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(runtime.cuda_unusable() is not None, reason=f"no GPU: {runtime.cuda_unusable()}"),
]

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
CPU = ["CPUExecutionProvider"]
# Sums of 1 to 2 terms, tanh and softmax in float32: a few roundings of values below 8, and the error of CUDA's tanhf.
FLOAT32: dict[str, Any] = {"rtol": 4e-6, "atol": 4e-6}

Feeds = dict[str, np.ndarray]
MakeModel = Callable[[], onnx.ModelProto]


def chain_feeds(rows: int, seed: int = 0) -> Feeds:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((rows, 8), np.float32), "b": rng.standard_normal(8, np.float32)}


def sum_feeds(rows: int) -> Feeds:
    rng = np.random.default_rng(rows)
    return {name: 3 * rng.standard_normal((rows, 8), np.float32) for name in ("x", "r")}


def on_device(value: np.ndarray) -> onnxruntime.OrtValue:
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value), "cuda", 0)


def room(shape: tuple[int, ...]) -> onnxruntime.OrtValue:
    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), np.float32, "cuda", 0)


@pytest.mark.parametrize(("make", "feeds"), [(models.chain, chain_feeds), (models.sum_softmax, sum_feeds)])
def test_kernels_agree_with_bodies_for_every_batch(make: MakeModel, feeds: Callable[[int], Feeds]) -> None:
    """One session, batches of 1, 31, 0 and 1025: the kernels' outputs are those of the bodies on the CPU."""
    fused, bodies = runtime.session(make(), CUDA), runtime.session(make(), CPU)
    assert {p.runs_as for p in fused.fused} == {"kernel"}
    for rows in (1, 31, 0, 1025, 31):
        given = feeds(rows)
        for mine, theirs in zip(fused.run(None, given), bodies.run(None, given), strict=True):
            assert mine.shape == theirs.shape
            np.testing.assert_allclose(mine, theirs, **FLOAT32)


def test_each_op_launches_once_per_run() -> None:
    """Launch counters count each fused op's kernel, once per run."""
    session = runtime.session(models.chain(), CUDA)
    runtime.reset_counts()
    for _ in range(3):
        session.run(None, chain_feeds(5))
    counts = runtime.launches()
    assert [counts[op] for op in ("BiasRelu_1", "TwiceTanh_2", "Negate_3")] == [3, 3, 3]


def test_float16_agrees_with_the_body_in_float32() -> None:
    """A float16 op computes in float32 and rounds once."""
    op = models.fused_op("HalfChain_7 (x, b) => (y) { s = Add(x, b)  y = Tanh(s) }", 2, element=TensorProto.FLOAT16)
    graph = "g (float16[N, 33] x, float16[33] b) => (float16[N, 33] y) { y = onnxfuse.HalfChain_7 (x, b) }"
    rng = np.random.default_rng(7)
    x, b = rng.standard_normal((197, 33)).astype(np.float16), rng.standard_normal(33).astype(np.float16)
    (y,) = runtime.session(models.model(graph, op), CUDA).run(None, {"x": x, "b": b})
    truth = np.tanh(x.astype(np.float32) + b.astype(np.float32))
    # Half a unit in the last place of float16, 2^-11 of the value, and as much again for float32 and tanhf near a tie.
    np.testing.assert_allclose(y.astype(np.float32), truth, rtol=2**-10, atol=2**-24)


def test_cuda_graph_replays_the_kernels() -> None:
    """Captured kernels read the bound buffers anew at each replay, and replays cost no launch by the bridge."""
    session = runtime.session(models.chain(), [("CUDAExecutionProvider", {"enable_cuda_graph": "1"}), CPU[0]])
    bodies = runtime.session(models.chain(), CPU)
    given = chain_feeds(31)
    x, b, y = on_device(given["x"]), on_device(given["b"]), room((31, 8))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_input("b", b)
    binding.bind_ortvalue_output("y", y)
    session.run_with_iobinding(binding)
    captured = runtime.launches()
    for seed in range(3):
        given = chain_feeds(31, seed)
        x.update_inplace(given["x"])
        b.update_inplace(given["b"])
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(y.numpy(), bodies.run(None, given)[0], **FLOAT32)
    assert runtime.launches() == captured


def test_two_threads_on_one_session() -> None:
    """Threads that run one session with different shapes get each their own answer."""
    session, bodies = runtime.session(models.chain(), CUDA), runtime.session(models.chain(), CPU)
    wrong: list[str] = []

    def work(seed: int) -> None:
        for step in range(50):
            given = chain_feeds(1 + (seed + step) % 7, seed)
            mine, theirs = session.run(None, given)[0], bodies.run(None, given)[0]
            if not np.allclose(mine, theirs, **FLOAT32):
                wrong.append(f"thread {seed} step {step}: {np.abs(mine - theirs).max()}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(("x_offset", "y_offset"), [(1, 0), (0, 1), (3, 2)])
def test_misaligned_buffers(x_offset: int, y_offset: int) -> None:
    """Bound buffers that start anywhere give the same values as aligned ones, and nothing beside them is written."""
    session, bodies = runtime.session(models.chain(), CUDA), runtime.session(models.chain(), CPU)
    given = chain_feeds(197)
    x, y = np.zeros(197 * 8 + 8, np.float32), np.full(197 * 8 + 8, 7, np.float32)
    x[x_offset:][: 197 * 8] = given["x"].ravel()
    x_room, y_room = on_device(x), on_device(y)
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, np.float32, (197, 8), x_room.data_ptr() + 4 * x_offset)
    binding.bind_ortvalue_input("b", on_device(given["b"]))
    binding.bind_output("y", "cuda", 0, np.float32, (197, 8), y_room.data_ptr() + 4 * y_offset)
    session.run_with_iobinding(binding)
    written = y_room.numpy()
    inside = written[y_offset:][: 197 * 8]
    np.testing.assert_allclose(inside.reshape(197, 8), bodies.run(None, given)[0], **FLOAT32)
    assert np.all(np.delete(written, np.s_[y_offset : y_offset + 197 * 8]) == 7)


@pytest.mark.parametrize("text", [LINEAR, IMAGES])
def test_shapes_that_the_names_do_not_allow(text: str) -> None:
    """Where its template has no kernel for them the general one runs; small integers are exact."""
    made = optimize(parse(text))[0]
    fused, bodies = runtime.session(made, CUDA), runtime.session(made, CPU)
    assert {p.runs_as for p in fused.fused} == {"kernel"}
    rng = np.random.default_rng(0)
    for images, residuals in ((4, 4), (4, 1), (1, 7), (4, 4), (4, 1)):
        batch = {"x": images, "r": residuals}
        given = {
            i.name: rng.integers(-2, 3, [batch.get(i.name, 8), *i.shape[1:]]).astype(np.float32)
            for i in fused.get_inputs()
        }
        np.testing.assert_array_equal(fused.run(None, given)[0], bodies.run(None, given)[0])


def test_sessions_come_and_go() -> None:
    """A session opened after others were closed loads its kernels anew."""
    given = chain_feeds(3)
    first = runtime.session(models.chain(), CUDA).run(None, given)[0]
    for _ in range(3):
        np.testing.assert_array_equal(runtime.session(models.chain(), CUDA).run(None, given)[0], first)


def test_a_branch_that_declares_another_shape_than_it_gives_runs() -> None:
    """ONNX Runtime makes room as a branch declares, and refuses what a custom op computes in another shape."""
    fused, _ = optimize(parse(WRONG))
    session = runtime.session(fused, CUDA)
    assert {p.runs_as for p in session.fused} == {"kernel"}
    x = np.array([0.5], np.float32)
    for choice, wanted in ((True, -x), (False, np.exp(1 / (1 + np.exp(-x - 1))))):
        (y,) = session.run(None, {"x": x, "c": np.array(choice)})
        assert y.shape == (1,)
        np.testing.assert_allclose(y, wanted, **FLOAT32)


@pytest.mark.parametrize("size", [15, 20])
def test_heads_off_a_boundary_are_one_kernel(size: int) -> None:
    """They and the weights around have zeros: what is computed is what the exported nodes compute on the CPU."""
    model = parse(packed("elements", size), opset=18)
    session = runtime.session(onnxfuse.optimize(model), CUDA)
    assert any("Attention" in p.op and p.runs_as == "kernel" for p in session.fused)
    x = np.random.default_rng(size).standard_normal((3, 40, 8), np.float32) / 4
    (mine,) = session.run(None, {"x": x})
    (theirs,) = runtime.session(model, CPU).run(None, {"x": x})
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=4e-3 * np.abs(theirs).max())  # TF32: 11 bits
