"""Sessions where there is no CUDA: the bodies run, and every placement says why."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfuse import runtime
from onnxfuse.support.errors import DeviceError, ModelError
from tests.support import fused_models as models

CPU = ["CPUExecutionProvider"]

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> str:
    """Why CUDA cannot be used, on every machine that runs this test."""
    reason = "there is no NVIDIA driver"
    for module in ("inference", "registration"):
        monkeypatch.setattr(f"onnxfuse.runtime.sessions.{module}.cuda_unusable", lambda: reason)
    return reason


def test_bodies_run_on_the_cpu_and_nothing_is_registered() -> None:
    """On the CPU provider a fused model gives the values of its bodies, and every op is reported as a function."""
    session = runtime.session(models.chain(), CPU)
    x, b = np.array([[1, -3] * 4], np.float32), np.ones(8, np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x, "b": b})[0], -np.tanh([[4, 0] * 4]), rtol=1e-6)
    assert {(p.runs_as, p.reason) for p in session.fused} == {("body", "CPU provider: the body runs")}
    assert isinstance(session, onnxruntime.InferenceSession)


def test_default_is_the_cpu_where_cuda_cannot_be_used(no_cuda: str) -> None:
    """Without providers the session falls to the CPU, and says what CUDA lacks."""
    session = runtime.session(models.chain())
    assert session.get_providers() == CPU
    assert {p.reason for p in session.fused} == {f"CPU provider: the body runs (CUDA cannot be used: {no_cuda})"}


def test_cuda_asked_for_and_missing_is_an_error(no_cuda: str) -> None:
    """ONNX Runtime would fall back to the CPU without a word; a session says what is missing and what to install."""
    with pytest.raises(DeviceError, match=no_cuda) as raised:
        runtime.session(models.chain(), ["CUDAExecutionProvider", *CPU])
    assert "pip install 'onnxfuse[cuda]'" in raised.value.hint
    assert raised.value.exit_code == 5


def test_register_without_cuda_registers_nothing(no_cuda: str) -> None:
    """The same lines of a user's program work on a machine without a GPU."""
    options = onnxruntime.SessionOptions()
    placements = runtime.register(options, models.chain())
    assert {(p.runs_as, p.reason) for p in placements} == {("body", f"CUDA cannot be used: {no_cuda}")}
    onnxruntime.InferenceSession(models.chain().SerializeToString(), options, providers=CPU)


def test_nodes_are_counted_in_branches_too() -> None:
    """`nodes` counts the nodes of an op in the graph and in the bodies of If, Loop and Scan."""
    twice = models.model(
        "g (float[N, 8] x) => (float[N, 8] y) { a = onnxfuse.Negate_3 (x)  y = onnxfuse.Negate_3 (a) }", models.NEGATE
    )
    assert [(p.op, p.nodes) for p in runtime.session(twice, CPU).fused] == [("Negate_3", 2)]
    forked = runtime.session(models.branches(), CPU)
    assert [(p.op, p.nodes) for p in forked.fused] == [("Negate_3", 1), ("TwiceTanh_2", 1)]


def test_a_model_with_external_weights_opens_by_path(tmp_path: Path) -> None:
    """By path, weights stay where they are until ONNX Runtime maps them."""
    graph = """g (float[N, 4] x) => (float[N, 4] y) <float[4] w = {2, 2, 2, 2}> {
      y = onnxfuse.BiasRelu_1 (x, w)
    }"""
    made = models.model(graph, models.BIAS_RELU)
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    for path in (tmp_path / "m.onnx", str(tmp_path / "m.onnx")):
        session = runtime.session(path, CPU)
        assert session.run(None, {"x": np.ones((1, 4), np.float32)})[0].tolist() == [[3] * 4]
        assert [p.op for p in session.fused] == ["BiasRelu_1"]


def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    """A missing file and bytes that are no model raise ModelError, not an exception of ONNX Runtime."""
    with pytest.raises(ModelError, match="no such file"):
        runtime.session(tmp_path / "none.onnx", CPU)
    with pytest.raises(ModelError, match="not an ONNX model"):
        runtime.session(b"\x00\x01 not a model", CPU)
