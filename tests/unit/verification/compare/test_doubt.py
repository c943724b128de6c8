"""What is doubtful on a GPU: the original is run on the CPU, too."""

from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse import runtime
from onnxfuse.support.errors import ModelError
from onnxfuse.verification.compare.compare import compare
from onnxfuse.verification.run import sessions

SIZES = {"n": (7, 64, 128)}


def mean_apart(by: str) -> onnx.ModelProto:
    """Most elements are what is left of a mean, whose error is that of the order in which it is added."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 64] x) => (float[n, 64] y) {{
          big = Constant <value = float {{{by}}}> ()
          moved = Add (x, big)
          back = Sub (moved, big)
          mean = ReduceMean <axes = [0, 1]> (back)
          y = Sub (x, mean)
        }}""")


@pytest.fixture
def as_if_on_cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The CPU passes for CUDA; what is run on the CPU, too, is the model under `original`."""
    found: dict[str, Any] = {"asked": 0}

    def on_cpu(model: Any, providers: Any) -> Any:
        found["asked"] += 1
        return sessions.ort_session(found["original"], providers)

    monkeypatch.setattr(sessions, "CUDA", "CPUExecutionProvider")
    monkeypatch.setattr(runtime, "cuda_unusable", lambda: None)
    monkeypatch.setattr(sessions, "low_memory_session", on_cpu)
    return found


def verdict(original: onnx.ModelProto, fused: onnx.ModelProto) -> set[str]:
    report = compare(original, fused, seeds=(0, 1), shapes=SIZES, providers=["CPUExecutionProvider"])
    return {row.verdict for row in report.rows}


def test_the_luck_of_one_order_of_sums_makes_no_verdict(as_if_on_cuda: dict[str, Any]) -> None:
    as_if_on_cuda["original"] = mean_apart("8.0")
    assert verdict(mean_apart("0.0"), mean_apart("1.0")) == {"ok"}
    assert as_if_on_cuda["asked"] == 1


def test_a_fault_is_one_on_the_cpu_too(as_if_on_cuda: dict[str, Any]) -> None:
    as_if_on_cuda["original"] = mean_apart("8.0")
    wrong = mean_apart("0.0")
    wrong.graph.node[-1].output[0] = "right"
    wrong.graph.node.append(onnx.helper.make_node("Mul", ["right", "more"], ["y"]))
    wrong.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1.0001, np.float32), "more"))
    assert "mismatch" in verdict(mean_apart("0.0"), wrong)


def test_an_original_that_the_cpu_does_not_run_is_judged_by_the_gpu_alone(
    as_if_on_cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(model: Any, providers: Any) -> Any:
        raise ModelError("no kernel for this operator", "")

    monkeypatch.setattr(sessions, "low_memory_session", refuses)
    assert "mismatch" in verdict(mean_apart("0.0"), mean_apart("1.0"))


def test_on_the_cpu_there_is_nothing_else_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "low_memory_session", lambda *_: pytest.fail("asked"))
    assert "mismatch" in verdict(mean_apart("0.0"), mean_apart("1.0"))


def test_a_provider_that_does_not_run_the_original_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused and original on two providers: the original has an error of its own on one, or on both."""
    run = sessions.run
    twins: list[Any] = []

    def runs(session: Any, inputs: Any, outputs: Any = None) -> Any:
        if session in twins:
            raise sessions.ORT_ERRORS[0]("Missing Input: mean")
        return run(session, inputs, outputs)

    def plain(*given: Any, **options: Any) -> Any:
        opened.append(real(*given, **options))
        twins[:] = opened[1:]
        return opened[-1]

    real, opened = sessions.ort_session, list[Any]()
    monkeypatch.setattr(sessions, "ort_session", plain)
    monkeypatch.setattr(sessions, "run", runs)
    model, cpu = mean_apart("0.0"), ["CPUExecutionProvider"]
    assert compare(model, model, shapes=SIZES, providers=cpu, fused_providers=cpu).ok
    assert len(twins) == 1
