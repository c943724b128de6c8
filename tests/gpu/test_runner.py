"""The runner on a real GPU: replays give the right numbers, in every kind of array, at the cost of a bound graph."""

import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfuse
from models.survey import samples
from models.survey.inputs import feeds
from onnxfuse import runtime
from tests.gpu.test_session import chain_feeds
from tests.support import fused_models as models
from tests.support.small import parse
from tests.unit.passes.shapes.test_device_scalars import LEGACY as NUMBERS
from tests.unit.runtime.sessions.test_runner import HEAD, REASONS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(runtime.cuda_unusable() is not None, reason=f"no GPU: {runtime.cuda_unusable()}"),
]


def expected(x: np.ndarray, b: np.ndarray) -> np.ndarray:
    return -np.tanh(2 * np.maximum(x + b, 0))


def test_replays_compute_what_plain_runs_do() -> None:
    """Three shapes in turns, other numbers each time; one graph each, two kept."""
    run = onnxfuse.runner(models.chain(), graphs=2)
    for seed in range(4):
        for rows in (3, 31, 1025):
            given = chain_feeds(rows, seed)
            kept = run(given)["y"]
            run(chain_feeds(rows, seed + 1))
            np.testing.assert_allclose(kept, expected(**given), rtol=4e-6, atol=4e-6)
    assert run.why_not == ""
    assert run.replayed > run.plain


def test_numbers_from_shapes_are_right_in_replays() -> None:
    """They are arguments of launches: each shape's graph has its own."""
    model = parse(NUMBERS)
    plain = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    run = onnxfuse.runner(onnxfuse.optimize(model))
    rng = np.random.default_rng(0)
    for _ in range(4):
        for shape in ((3, 5), (31, 7)):
            given = {"x": rng.standard_normal(shape, np.float32), "ids": rng.integers(-9, 9, shape)}
            found = run(given)
            for output, wanted in zip(plain.get_outputs(), plain.run(None, given), strict=True):
                np.testing.assert_allclose(found[output.name], wanted, rtol=2e-3, atol=2e-3)  # one is of float16
    assert run.why_not == ""
    assert run.replayed > 0


def test_heads_repeated_to_a_computed_shape_are_captured() -> None:
    """Grouped queries as torch's exporter traces them: the shape stays on the CPU, and a replay gives the same bits."""
    (file,) = samples.FOLDER.glob("*qwen2-trace*")
    model = onnxfuse.optimize(samples.unpacked(file.read_bytes()))
    plain = runtime.session(model, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    run = onnxfuse.runner(model)
    for seed in range(4):
        for batch in (2, 3):
            given = feeds(model, 0, seed, batch=batch)
            for output, wanted in zip(plain.get_outputs(), plain.run(None, dict(given)), strict=True):
                np.testing.assert_array_equal(run(given)[output.name], wanted)
    assert run.why_not == ""
    assert run.replayed > 0


def test_arrays_stay_on_the_device() -> None:
    """CuPy arrays give CuPy arrays of their own memory, also of work that is still under way on another stream."""
    cupy = pytest.importorskip("cupy")
    run = onnxfuse.runner(models.chain())
    given = chain_feeds(33)
    with cupy.cuda.Stream(non_blocking=True):
        for n in range(4):
            x = {name: cupy.asarray(value) * (n + 1) for name, value in given.items()}
            found = run(x)["y"]
            assert isinstance(found, cupy.ndarray)
            np.testing.assert_allclose(
                found.get(), expected(*((n + 1) * v for v in given.values())), rtol=4e-6, atol=4e-6
            )
    assert run.replayed == 3


def test_what_is_bound_reads_the_memory_that_was_written() -> None:
    """The inputs are written in place through DLPack, and nothing is copied."""
    cupy = pytest.importorskip("cupy")
    bound = onnxfuse.runner(models.chain()).bind(chain_feeds(5))
    given = chain_feeds(5, 7)
    for name, value in given.items():
        cupy.from_dlpack(bound.inputs[name])[...] = cupy.asarray(value)
    cupy.cuda.Device().synchronize()
    bound()
    np.testing.assert_allclose(bound.outputs["y"].numpy(), expected(**given), rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("name", list(REASONS))
def test_what_cannot_be_captured_gives_the_right_numbers(name: str) -> None:
    """As ONNX Runtime's plain session does, run after run."""
    model = onnx.parser.parse_model(HEAD + REASONS[name][0])
    run = onnxfuse.runner(model)
    given = {"x": np.arange(-16, 16, dtype=np.float32).reshape(4, 8)}
    given |= {"If": {"c": np.array(True)}, "read": {"s": np.array([8, 4])}}.get(name, {})
    plain = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for _ in range(3):
        found = run(given)["y"]
        if name != "random":
            np.testing.assert_array_equal(found, plain.run(None, given)[0])
    assert REASONS[name][1] in run.why_not


def test_a_failed_capture_leaves_a_runner_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose kernel waits for the GPU, not known beforehand: the capture fails, and what follows is right."""
    monkeypatch.setattr("onnxfuse.runtime.sessions.runner.WAITS", frozenset())
    run = onnxfuse.runner(onnx.parser.parse_model(HEAD + REASONS["NonZero"][0]))
    x = np.arange(-16, 16, dtype=np.float32).reshape(4, 8)
    for _ in range(4):
        np.testing.assert_array_equal(run({"x": x})["y"], np.stack(np.nonzero(x)))
    assert run.why_not.startswith("the capture failed")


def test_a_bound_call_costs_what_a_bound_graph_costs() -> None:
    """Printed, not asserted: -s shows it. `python -m bench.runner` compares whole models."""
    run = onnxfuse.runner(models.chain())
    given = chain_feeds(1)
    bound = run.bind(given)
    for name, call in (("bound", bound), ("NumPy", lambda: run(given))):
        print(f"{name}: {1e6 * median(call):.1f} us")


def median(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(200):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))
