"""Sessions with other providers than CUDA and the CPU: fused ops run on CUDA alone, and errors name who failed.

TensorRT is a stand-in that supports no operator (tests/support/fake_cuda); its provider is ONNX Runtime's own.
"""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfuse import runtime
from onnxfuse.runtime import Session
from onnxfuse.support.errors import DeviceError, ModelError
from tests.support import fused_models as models
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda

TENSORRT, CUDA, CPU = "TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"
ORDERS = [[TENSORRT, CUDA, CPU], [CUDA, TENSORRT, CPU], [CPU, CUDA]]


def every_order() -> list[Any]:
    stand_in_kernels.install()
    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((3, 8), np.float32), rng.standard_normal(8, np.float32)
    found = []
    for order in ORDERS:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        session = runtime.session(models.chain(), order, options)
        (y,) = session.run(None, {"x": x, "b": b})
        parts = session.get_provider_graph_assignment_info()
        found.append(
            {
                "providers": session.get_providers(),
                "error": float(np.abs(y + np.tanh(2 * np.maximum(x + b, 0))).max()),
                "assigned": [[part.ep_name, [n.op_type for n in part.get_nodes()]] for part in parts],
                "launches": sum(runtime.launches().values()),
            }
        )
        runtime.reset_counts()
    return found


def test_fused_ops_run_on_cuda_whatever_the_order(on_fake_cuda: FakeCuda) -> None:
    """TensorRT and the CPU, first or later, are assigned none: their kernels launch, and compute what they should."""
    for order, facts in zip(ORDERS, on_fake_cuda(every_order), strict=True):
        assert facts["providers"] == order
        assert facts["error"] == 0
        assert facts["assigned"] == [[CUDA, [op]] for op in ("BiasRelu_1", "TwiceTanh_2", "Negate_3")]
        assert facts["launches"] == 3


def refusals() -> dict[str, list[str]]:
    kernels = stand_in_kernels.install()
    found = {}

    def attempt(name: str, providers: list[str]) -> None:
        with pytest.raises((DeviceError, ModelError)) as caught:
            runtime.session(models.chain(), providers)
        found[name] = [type(caught.value).__name__, f"{caught.value}", caught.value.hint or ""]

    attempt("bodies alone", [TENSORRT, CPU])
    kernels.unsupported["TwiceTanh_2"] = "a reason"
    attempt("one body", [TENSORRT, CUDA, CPU])
    kernels.unsupported.clear()
    nodes = [SimpleNamespace(domain="", op_type="Relu"), SimpleNamespace(domain="onnxfuse", op_type="BiasRelu_1")]
    taken = SimpleNamespace(ep_name=TENSORRT, get_nodes=lambda: nodes)
    Session.get_provider_graph_assignment_info = lambda self: [taken]  # as of a TensorRT with a plugin of that name
    attempt("assigned to it", [TENSORRT, CUDA, CPU])
    runtime.session(models.chain(), [CUDA, CPU])  # asks nothing of the kind
    return found


def test_what_another_provider_cannot_do_is_an_error(on_fake_cuda: FakeCuda) -> None:
    """A body that TensorRT would have to read, and a fused op that is assigned to it: nothing runs by chance."""
    facts = on_fake_cuda(refusals)
    for name in ("bodies alone", "one body"):
        error, words, hint = facts[name]
        assert error == "ModelError"
        assert f"{TENSORRT} cannot open a model whose fused ops run through their bodies" in words
        assert "original model" in hint
    error, words, hint = facts["assigned to it"]
    assert error == "DeviceError"
    assert f"ONNX Runtime assigned BiasRelu_1 to {TENSORRT}; its kernel runs on {CUDA}" in words
    assert f"List {CUDA} before {TENSORRT}" in hint


@pytest.mark.skipif(TENSORRT not in onnxruntime.get_available_providers(), reason="this build has no TensorRT provider")
def test_a_provider_whose_libraries_are_not_there_is_named() -> None:
    """ONNX Runtime's own text begins with the address of its source file."""
    with pytest.raises(DeviceError, match=f"^{TENSORRT} was requested but cannot be used: ") as caught:
        runtime.session(models.chain(), [TENSORRT, CPU])
    assert "Install its libraries" in (caught.value.hint or "")


# ---- ONNX Runtime's Compile API


def compiled() -> dict[str, Any]:
    """What is left of a fused file: by options without kernels, and by options that have them."""
    stand_in_kernels.install()
    found: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp())
    onnx.save(models.chain(), folder / "fused.onnx")
    for name in ("plain", "registered"):
        options = onnxruntime.SessionOptions()
        options.add_provider(CUDA, {})
        if name == "registered":
            runtime.register(options, folder / "fused.onnx")
        onnxruntime.ModelCompiler(options, f"{folder / 'fused.onnx'}").compile_to_file(f"{folder / name}.onnx")
        made = onnx.load(folder / f"{name}.onnx")
        found[name] = [[n.domain for n in made.graph.node], len(made.functions)]
    found["plain opens"] = len(runtime.session(folder / "plain.onnx", [CUDA, CPU]).fused)
    with pytest.raises(ModelError) as caught:
        runtime.session(folder / "registered.onnx", [CUDA, CPU])
    found["registered opens"] = f"{caught.value} {caught.value.hint}"
    return found


def test_a_compiled_file_has_no_fused_ops_that_can_be_opened(on_fake_cuda: FakeCuda) -> None:
    """The Compile API inlines bodies for good; with kernels registered it keeps the nodes and drops the functions."""
    facts = on_fake_cuda(compiled)
    assert facts["plain"] == [[""] * 5, 0]
    assert facts["plain opens"] == 0
    assert facts["registered"] == [["onnxfuse"] * 3, 0]
    assert "has no function onnxfuse.BiasRelu_1" in facts["registered opens"]
    assert "Compile API" in facts["registered opens"]
