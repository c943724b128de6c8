"""A profile as a Chrome trace."""

from dataclasses import replace
from typing import Any

import onnxfuse
from onnxfuse.measure.profile import profile
from onnxfuse.measure.profile.kernels import TracedKernel
from onnxfuse.measure.profile.trace import chrome_trace
from onnxfuse.measure.timing import device
from tests.support import fused_models, stand_in_cupti, stand_in_kernels
from tests.support.scenarios import FakeCuda
from tests.unit.measure.profile.test_run import Seen, original

CPU = ["CPUExecutionProvider"]

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_the_trace_has_a_process_for_each_model() -> None:
    """Both begin at 0; every event has what viewers of the format want."""
    found = profile(original(), onnxfuse.optimize(original()), providers=CPU, runs=2)
    trace = chrome_trace(found)
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {e["pid"] for e in events} == {1, 2}
    for pid in (1, 2):
        assert min(e["ts"] for e in events if e["pid"] == pid) == 0
    assert all(e["dur"] >= 0 and e["name"] and isinstance(e["args"]["bytes"], int) for e in events)
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "process_name"}
    assert names == {"before", "after"}


def test_the_trace_of_a_cuda_graph_has_kernels_alone() -> None:
    """The host launches it as a whole; each kernel still tells its node."""
    counted = profile(original(), time=False)
    kernels = [
        TracedKernel("k1", 5.0, 2.0, None, node="a", op="Add"),
        TracedKernel("k2", 8.0, 1.0, None, node="b", op="Tanh"),
    ]
    trace = chrome_trace(replace(counted, before=replace(counted.before, example=((), kernels))))
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["args"]["node"]) for e in events] == [
        ("k1", 0, 2.0, "a"), ("k2", 3.0, 1.0, "b")
    ]  # fmt: skip
    rows = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert rows == ["kernels (device)"]


def traced_on_cuda() -> Any:
    stand_in_kernels.install(launched=Seen(stand_in_cupti.install()))
    device._card = lambda: {"device": "stand-in"}
    return chrome_trace(profile(fused_models.chain(), shapes={"N": (3,)}, providers=CUDA, runs=4))


def test_the_trace_has_kernels_beside_the_nodes(on_fake_cuda: FakeCuda) -> None:
    """A row of the host and one of the device; a kernel tells its node, grid, block and registers."""
    events = [e for e in on_fake_cuda(traced_on_cuda)["traceEvents"] if e["ph"] == "X"]
    (kernel,) = (e for e in events if e["name"] == "BiasRelu_1_kernel")
    (node,) = (e for e in events if e["name"] == "h")
    assert kernel["tid"] != node["tid"]
    assert kernel["args"]["node"] == "h"
    assert kernel["args"]["registers per thread"] == 40
    assert kernel["ts"] >= node["ts"]
