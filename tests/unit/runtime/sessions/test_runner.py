"""The runner: plain at first, then a graph for each set of shapes; what cannot be captured runs plainly, with a reason.

On the stand-in CUDA libraries a replay computes nothing, so what is looked at there is what was captured and replayed.
"""

import threading
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfuse
from onnxfuse.support.errors import UsageError
from tests.support import fused_models as models
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda
from tests.unit.runtime.sessions.test_inference import chain_of, feeds

CPU = ["CPUExecutionProvider"]
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def uses_memory() -> Any:
    stand_in_kernels.install(scratch_bytes=64)
    run = onnxfuse.runner(models.chain())
    run(feeds(3))
    plain = run.memory()
    run(feeds(3))
    captured = run.memory()
    return {
        "why_not": run.why_not,
        "graphs": [plain.graphs, captured.graphs],
        "shapes": [list(step.shapes) for step in plain.steps],
        "consolidates": run._session.keeper.consolidates,  # type: ignore[union-attr]  # it is on CUDA
    }


def test_its_memory_counts_graphs_with_their_inputs_and_outputs(on_fake_cuda: FakeCuda) -> None:
    """And names the shapes of what it bound; from the first capture on no region of the arena is returned."""
    facts = on_fake_cuda(uses_memory)
    assert facts["why_not"] == ""
    assert facts["graphs"] == [0, 4 * (3 * 8 + 8 + 3 * 8)]
    assert facts["shapes"][0] == ["x", "b"]
    assert not facts["consolidates"]


# ---- on the CPU


def test_on_the_cpu_it_is_a_plain_session() -> None:
    """Right numbers, and a reason why nothing is captured."""
    with onnxfuse.runner(models.chain(), providers=CPU) as run:
        for rows in (3, 1, 3, 3):
            np.testing.assert_allclose(run(feeds(rows))["y"], chain_of(**feeds(rows)), rtol=1e-6)
        assert (run.captured, run.replayed, run.plain) == (0, 0, 4)
        assert "CUDA graphs are for CUDA" in run.why_not
        with pytest.raises(UsageError, match=r"no CUDA graph to bind to.*CUDA graphs are for CUDA"):
            run.bind(feeds())
    with pytest.raises(UsageError, match="closed"):
        run(feeds())


def test_what_is_given_wrong_is_named() -> None:
    """An input too few, one too many, one of another type, and what is no array."""
    run = onnxfuse.runner(models.chain(), providers=CPU)
    given = feeds()
    for wrong, words in (
        ({"x": given["x"]}, "input 'b' is missing; the model has x, b"),
        ({**given, "z": given["b"]}, "there is no input 'z'"),
        (
            {**given, "b": given["b"].astype(np.float64)},
            r"'b' is a tensor\(double\); the model wants a tensor\(float\)",
        ),
        ({**given, "b": [1.0] * 8}, "an input is a list"),
    ):
        with pytest.raises(UsageError, match=words):
            run(wrong)
    with pytest.raises(UsageError, match="seq"):
        onnxfuse.runner(parsed("g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct (x) }"), providers=CPU)
    with pytest.raises(UsageError, match="graphs is -1"):
        onnxfuse.runner(models.chain(), graphs=-1)


def test_outputs_are_of_the_kind_of_the_first_input() -> None:
    """NumPy arrays, bfloat16 included, and what speaks DLPack: an OrtValue gets OrtValues."""
    twice = onnxfuse.runner(parsed("g (float[N] x) => (float[N] y, bool[N] z) { y = Add (x, x) z = Not (w) "
                                   "w = Greater (x, x) }"), providers=CPU)  # fmt: skip
    x = np.arange(6, dtype=np.float32)
    assert twice({"x": x[::2]})["y"].tolist() == [0, 4, 8]  # not contiguous
    given = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    found = twice({"x": given})
    assert isinstance(found["y"], onnxruntime.OrtValue)
    assert found["y"].numpy().tolist() == [0, 2, 4, 6, 8, 10]
    assert found["z"].numpy().all()
    cast = onnxfuse.runner(parsed("g (bfloat16[N] x) => (bfloat16[N] y) { f = Cast <to = 1> (x) g = Add (f, f) "
                                  "y = Cast <to = 16> (g) }"), providers=CPU)  # fmt: skip
    assert cast({"x": x.astype(ml_dtypes.bfloat16)})["y"].tolist() == (2 * x).tolist()


# ---- on CUDA


def replays() -> Any:
    kernels = stand_in_kernels.install()
    run = onnxfuse.runner(models.chain(), graphs=2)
    counts = []
    for rows in (3, 3, 3, 5, 3, 5, 7, 7, 3, 3, 3):
        before = len(kernels.launched)
        first = run(feeds(rows))["y"]
        assert first.shape == (rows, 8)
        counts.append([rows, run.captured, run.replayed, len(kernels.launched) - before > 0])
    bound = run.bind(feeds(3))
    launched, captured = len(kernels.launched), run.captured
    bound()
    elsewhere: list[str] = []

    def other() -> None:
        try:
            bound()
        except UsageError as error:
            elsewhere.append(f"{error}")
        run(feeds(3))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    run.close()
    return {
        "counts": counts, "bound": [len(kernels.launched) - launched, run.captured - captured],
        "where": bound.inputs["x"].device_name(), "shape": bound.outputs["y"].shape(), "elsewhere": elsewhere,
        "why not": run.why_not,
    }  # fmt: skip


def test_shapes_that_come_again_are_captured_and_replayed(on_fake_cuda: FakeCuda) -> None:
    """Rows, graphs captured, replays, and whether kernels were launched: 3 is dropped for 7, and captured again."""
    found = on_fake_cuda(replays)
    assert found["counts"] == [
        [3, 0, 0, True], [3, 1, 1, True], [3, 1, 2, False], [5, 1, 2, True], [3, 1, 3, False], [5, 2, 4, True],
        [7, 2, 4, True], [7, 3, 5, True], [3, 4, 6, True], [3, 4, 7, False], [3, 4, 8, False],
    ]  # fmt: skip
    assert found["why not"] == ""
    assert found["where"] == "cuda"
    assert found["shape"] == [3, 8]
    assert found["bound"][1] == 0
    assert "another thread" in found["elsewhere"][0]
    assert len(on_fake_cuda.trace("cudaStreamEndCapture")) == 4


def at_most_so_many() -> Any:
    stand_in_kernels.install()
    run = onnxfuse.runner(models.chain(), graphs=1)
    for rows in range(1, 12):
        run(feeds(rows))
        run(feeds(rows))
    none = onnxfuse.runner(models.chain(), graphs=0)
    none(feeds())
    return [run.captured, run.plain, none.why_not, none.captured]


def test_shapes_that_never_come_to_rest_run_plainly(on_fake_cuda: FakeCuda) -> None:
    """ONNX Runtime frees no graph before its session, so there are so many captures and no more."""
    assert on_fake_cuda(at_most_so_many) == [8, 14, "graphs is 0", 0]


REASONS = {
    "copied": ("""g (float[N,8] x) => (float[N,8] y) { s = Shape <start = 0, end = 1> (x)  n = Cast <to = 1> (s)
        a = Relu (x)  y = Mul (a, n) }""", "not been partitioned"),
    "If": ("""g (float[N,8] x, bool c) => (float[N,8] y) { y = If (c) <then_branch = a () => (float[N,8] t)
        { t = Relu (x) }, else_branch = b () => (float[N,8] e) { e = Neg (x) }> }""", "control flow"),
    "NonZero": ("g (float[N,8] x) => (int64[2,K] y) { y = NonZero (x) }", "NonZero: the size of its output"),
    "read": ("g (float[N,8] x, int64[2] s) => (float[A,B] y) { y = Reshape (x, s) }", "input 's' is read on the CPU"),
    "random": ("g (float[N,8] x) => (float[N,8] y) { y = RandomNormalLike (x) }", "the same random numbers"),
}  # fmt: skip


def fallbacks() -> Any:
    found = {}
    for name, (text, _) in REASONS.items():
        run = onnxfuse.runner(parsed(text))
        given: dict[str, Any] = {"x": np.zeros((4, 8), np.float32)}
        given |= {"If": {"c": np.array(True)}, "read": {"s": np.array([8, 4])}}.get(name, {})
        if name != "NonZero":  # whose kernel asks the stand-in GPU
            for _ in range(3):
                run(given)
        found[name] = [run.why_not, run.captured, run.plain]
    return found


def test_what_cannot_be_captured_runs_plainly(on_fake_cuda: FakeCuda) -> None:
    """With the reason: what ONNX Runtime refuses, and what a replay would get wrong without a word."""
    found = on_fake_cuda(fallbacks)
    for name, (_, words) in REASONS.items():
        why, captured, plain = found[name]
        assert words in why, name
        assert (captured, plain) == (0, 0 if name == "NonZero" else 3)


def capture_that_fails() -> Any:
    stand_in_kernels.install()
    run = onnxfuse.runner(models.chain())
    real = onnxruntime.InferenceSession.run_with_iobinding

    def refuse(self: Any, binding: Any, options: Any = None) -> Any:
        if options is not None and options.get_run_config_entry("gpu_graph_id") != "-1":
            raise RuntimeError("CUDA failure 900: operation not permitted when stream is capturing")
        return real(self, binding, options)

    onnxruntime.InferenceSession.run_with_iobinding = refuse
    errors = [float(np.abs(run(feeds(3, i))["y"] - chain_of(**feeds(3, i))).max()) for i in range(4)]
    return {"errors": errors, "why": run.why_not, "runs": [run.captured, run.replayed, run.plain]}


def test_a_capture_that_fails_falls_back(on_fake_cuda: FakeCuda) -> None:
    """The run that would have captured is done plainly by another session, and so are all after it."""
    found = on_fake_cuda(capture_that_fails)
    assert found["errors"] == [0, 0, 0, 0]
    assert found["why"].startswith("the capture failed: CUDA failure 900")
    assert found["runs"][1:] == [0, 4]
