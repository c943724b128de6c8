"""`onnxfuse.measure.profile.profile` on the CPU, and on the stand-in CUDA libraries with a stand-in for CUPTI."""

from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import onnxfuse
from onnxfuse.measure.profile import profile
from onnxfuse.measure.timing import device
from onnxfuse.support.errors import DeviceError, ModelError, UsageError
from tests.support import fused_models, stand_in_cupti, stand_in_kernels
from tests.support.scenarios import FakeCuda

CPU = ["CPUExecutionProvider"]

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) {
  [a] s = Add(x, x) [b] t = Tanh(s) [c] y = Softmax(t)
}"""


def original() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def test_on_the_cpu_each_node_is_timed() -> None:
    """By ONNX Runtime's profiler, under the node's name, with bytes for the bandwidth; no kernels are claimed."""
    found = profile(original(), shapes={"N": (6,)}, providers=CPU, runs=3)
    assert (found.provider, found.setting, found.runs, found.dimensions) == (CPU[0], "default", 3, {"N": 6})
    assert {n.name: (n.op, n.times) for n in found.before.nodes} == {
        "a": ("Add", 1), "b": ("Tanh", 1), "c": ("Softmax", 1)
    }  # fmt: skip
    assert {k.kind: k.bytes for k in found.before.kinds} == {"Add": 192, "Tanh": 192, "Softmax": 192}
    assert (found.before.kernels, found.before.run, found.after) == (None, None, None)
    assert found.summary == "device memory per run at N=6: 576 B; 168 FLOP"


def test_before_and_after_are_side_by_side() -> None:
    """Both models at the same shapes; the intermediate that is gone is told with its bytes."""
    found = profile(original(), onnxfuse.optimize(original()), shapes={"N": (6,)}, time=False)
    assert found.after is not None
    assert (found.before.work.bytes, found.after.work.bytes) == (3 * 192, 192)
    assert (found.removed.count, found.removed.of, found.removed.bytes) == (2, 2, 2 * 96)
    assert found.before.us is None


def test_models_without_names_are_told_apart_by_their_outputs() -> None:
    """ONNX Runtime's profiler knows a node by its name alone; the model that was given is left as it is."""
    model = original()
    for node in model.graph.node:
        node.name = ""
    before = model.SerializeToString()
    found = profile(model, shapes={"N": (6,)}, providers=CPU, runs=1)
    assert {n.name for n in found.before.nodes} == {"s", "t", "y"}
    assert model.SerializeToString() == before


def test_what_does_not_go_together_is_refused() -> None:
    """Several sizes of a dimension, models of different interfaces, a CUDA graph on the CPU."""
    with pytest.raises(UsageError, match="2 sets of shapes"):
        profile(original(), shapes={"N": (1, 2)}, time=False)
    other = onnx.parser.parse_model(TEXT.replace("x)", "z)").replace("(x, x)", "(z, z)").replace("] x", "] z"))
    with pytest.raises(ModelError, match="do not belong together"):
        profile(original(), other, time=False)
    with pytest.raises(UsageError, match="CUDA graph"):
        profile(original(), providers=CPU, cuda_graph=True)


class Seen(list[SimpleNamespace]):
    """The launches of our kernels, each told to the stand-in for CUPTI: kernel k takes k + 1 microseconds."""

    def __init__(self, cupti: stand_in_cupti.StandInCupti) -> None:
        super().__init__()
        self.cupti = cupti

    def append(self, launch: SimpleNamespace) -> None:
        super().append(launch)
        self.cupti.launch(f"{launch.op}_kernel", 2.0, call="DRIVER")


def on_cuda(**more: Any) -> Any:
    stand_in_kernels.install(launched=Seen(stand_in_cupti.install()))
    device._card = lambda: {"device": "stand-in"}
    return profile(fused_models.chain(), shapes={"N": (3,)}, providers=CUDA, runs=4, **more).as_dict()


def in_a_graph() -> Any:
    return on_cuda(cuda_graph=True)


def test_each_kernel_is_joined_with_the_node_that_launched_it(on_fake_cuda: FakeCuda) -> None:
    """Three fused ops, three kernels, each under its own node: by ONNX Runtime's profile and CUPTI's launches alone."""
    side = on_fake_cuda(on_cuda)["before"]
    kernels = {k["name"]: k for k in side["kernels"]}
    assert {name: (k["count"], len(k["nodes"])) for name, k in kernels.items()} == {
        f"{op}_kernel": (1, 1) for op in ("BiasRelu_1", "TwiceTanh_2", "Negate_3")
    }
    by_node = {k["nodes"][0]: name for name, k in kernels.items()}
    assert by_node == {"h": "BiasRelu_1_kernel", "t": "TwiceTanh_2_kernel", "y": "Negate_3_kernel"}
    assert kernels["BiasRelu_1_kernel"]["us"] == pytest.approx(2.0)
    assert kernels["BiasRelu_1_kernel"]["bytes"] == 4 * (3 * 8 + 8 + 3 * 8)
    assert side["run"]["launches"] == 3
    assert side["run"]["unknown"] == 0
    assert side["note"] == ""
    assert {n["name"]: n["device_us"] for n in side["nodes"]} == {"h": 2.0, "t": 2.0, "y": 2.0}


def test_kernels_of_a_cuda_graph_that_are_not_seen_are_not_made_up(on_fake_cuda: FakeCuda) -> None:
    """The stand-in replays nothing: the times are those of the run under the profiler, and the report says so."""
    facts = on_fake_cuda(in_a_graph)
    assert facts["setting"] == "CUDA graph"
    assert "others than those under ONNX Runtime's profiler" in facts["before"]["note"]
    assert facts["before"]["run"]["launches"] == 3


def without_cupti() -> Any:
    stand_in_kernels.install()
    import onnxfuse.measure.profile.cupti as module

    module.BINDING = "no_such_package"
    counted = profile(fused_models.chain(), shapes={"N": (3,)})
    try:
        profile(fused_models.chain(), shapes={"N": (3,)}, providers=CUDA)
    except DeviceError as error:
        return {"told": str(error), "hint": error.hint, "untimed": counted.untimed, **counted.as_dict()}
    return {}


def test_without_cupti_bytes_are_counted_and_times_are_not_made_up(on_fake_cuda: FakeCuda) -> None:
    """Host times of launches say nothing: none are given, and why; where CUDA was asked for that is an error."""
    facts = on_fake_cuda(without_cupti)
    assert "cupti-python is not installed" in facts["untimed"]
    assert "cupti-python is not installed" in facts["told"]
    assert facts["hint"] == "pip install 'onnxfuse[profile]'"
    assert (facts["provider"], facts["before"]["us"], facts["before"]["kernels"]) == ("", None, None)
    assert facts["before"]["work"]["bytes"] > 0
