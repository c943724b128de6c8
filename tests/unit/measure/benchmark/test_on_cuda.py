"""Benchmarks on the stand-in CUDA libraries: the options that reach ONNX Runtime, launches, copies, refusals."""

import itertools
from typing import Any

import onnx
import pytest

from onnxfuse.measure.benchmark import bench, compare
from onnxfuse.measure.benchmark.ceilings import Ceilings
from onnxfuse.measure.timing import binding, device, stopwatch
from onnxfuse.measure.timing.settings import Setting, cuda_settings
from onnxfuse.model.tf32 import set_strict_fp32
from tests.support import fused_models as models
from tests.support import stand_in_cupti, stand_in_kernels
from tests.support.scenarios import FakeCuda
from tests.unit.measure.profile.test_run import Seen

HEAD = '<ir_version: 10, opset_import: ["" : 20]>'
CHAIN = "g (float[N, 8] x, float[8] b) => (float[N, 8] y)"
CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


def original() -> onnx.ModelProto:
    """The chain of `fused_models.chain`, before fusion."""
    return onnx.parser.parse_model(
        f"{HEAD} {CHAIN} {{ s = Add (x, b)  r = Relu (s)  d = Add (r, r)  t = Tanh (d)  y = Neg (t) }}"
    )


def stand_in_card() -> None:
    """CuPy does not start on the stand-in: each look at the memory sees 5 MB more in use than the one before.

    Nor is there anything to measure.
    """
    used = itertools.count(0, 5_000_000)
    device.used_memory = lambda: next(used)
    device._card = lambda: {"device": "stand-in"}
    pytest.MonkeyPatch().setattr(compare, "measured", lambda types, providers, setting: Ceilings(1e12, {}))


def options_of_each_setting() -> Any:
    found = {}
    for setting in cuda_settings(convolutions=True):
        session = binding.opened(original(), setting, CUDA, fused=False)
        options = session.get_provider_options()["CUDAExecutionProvider"]
        found[setting.name] = [options[k] for k in ("enable_cuda_graph", "prefer_nhwc", "fuse_conv_bias")]
    return found


def test_settings_reach_the_cuda_provider(on_fake_cuda: FakeCuda) -> None:
    """ONNX Runtime itself says with which options each session was opened: CUDA graph, NHWC, conv bias."""
    assert on_fake_cuda(options_of_each_setting) == {
        "default": ["0", "0", "0"],
        "CUDA graph": ["1", "0", "0"],
        "NHWC": ["0", "1", "0"],
        "NHWC, CUDA graph": ["1", "1", "0"],
        "NHWC, conv bias": ["0", "1", "1"],
        "NHWC, conv bias, CUDA graph": ["1", "1", "1"],
    }


def benched() -> Any:
    stand_in_kernels.install()
    stand_in_card()
    return bench(original(), models.chain(), shapes={"N": (1, 3)}, runs=4, rounds=2).as_dict()


def test_a_benchmark_on_cuda(on_fake_cuda: FakeCuda) -> None:
    """Both models with and without CUDA graph; launches counted in one run, memory per session, TF32 stated."""
    facts = on_fake_cuda(benched)
    assert facts["provider"] == "CUDAExecutionProvider"
    for block in facts["blocks"]:
        assert [(r["model"], r["setting"], r["memory_bytes"]) for r in block["rows"]] == [
            (model, setting, 5_000_000) for model in ("original", "fused") for setting in ("default", "CUDA graph")
        ]
        assert block["refused"] == []
    assert facts["fused_ops"] == {"nodes": 3, "kernels": 3, "bodies": 0, "launches": 3, "reasons": []}
    assert facts["nodes"] == {"original": {"CUDA": 5}, "fused": {"CUDA": 3}}
    assert "cupti-python is not installed" in facts["uncounted"]
    assert {r["launches"] for block in facts["blocks"] for r in block["rows"]} == {None}
    assert facts["environment"]["float32 products"] == "TF32 on (ONNX Runtime's default)"


def benched_beside_others() -> Any:
    stand_in_kernels.install()
    stand_in_card()
    freed = itertools.count(10**12, -1)
    device.used_memory = lambda: next(freed)
    return bench(original(), models.chain(), runs=1, rounds=1).as_dict()


def test_memory_that_others_freed_is_not_ours(on_fake_cuda: FakeCuda) -> None:
    """A session that grew by less than nothing is one whose memory is not known."""
    facts = on_fake_cuda(benched_beside_others)
    assert {row["memory_bytes"] for row in facts["blocks"][0]["rows"]} == {None}


def benched_strictly() -> Any:
    stand_in_kernels.install()
    stand_in_card()
    strict = models.chain()
    set_strict_fp32(strict)
    seen, found = [], []
    for asked in (None, True):
        facts = bench(original(), strict, runs=1, rounds=1, use_tf32=asked).as_dict()
        seen.append(facts["environment"]["float32 products"])

    def recorded(model: Any, setting: Setting, *more: Any, **options: Any) -> Any:
        session = binding.opened(model, setting, *more, **options)
        found.append(session.get_provider_options()["CUDAExecutionProvider"]["use_tf32"])
        return session

    pytest.MonkeyPatch().setattr(compare, "opened", recorded)
    bench(original(), strict, runs=1, rounds=1)
    return [seen, found]


def test_both_models_of_a_strict_file_are_timed_without_tf32(on_fake_cuda: FakeCuda) -> None:
    """At every setting, unless TF32 is asked for; the report says which."""
    said, options = on_fake_cuda(benched_strictly)
    assert said == ["TF32 off (use_tf32 0)", "TF32 on (ONNX Runtime's default)"]
    assert options == ["0"] * 4


def counted() -> Any:
    cupti = stand_in_cupti.install()
    stand_in_kernels.install(launched=Seen(cupti))
    stand_in_card()
    return bench(original(), models.chain(), runs=2, rounds=1).as_dict()


def test_launches_are_counted_in_each_session(on_fake_cuda: FakeCuda) -> None:
    """Those of the fused model's three ops: the stand-ins see no kernels of ONNX Runtime, and replay no graph."""
    facts = on_fake_cuda(counted)
    found = {(r["model"], r["setting"]): r["launches"] for r in facts["blocks"][0]["rows"]}
    assert found["fused", "default"] == 3
    assert found["original", "default"] == 0
    assert facts["uncounted"] == ""


def test_a_replayed_graph_launches_nothing(on_fake_cuda: FakeCuda) -> None:
    """The fused model's CUDA graph is really in use: only the sessions without one launch kernels in each run."""
    on_fake_cuda(benched)
    warm_up, estimated, timed, captured, shapes = stopwatch.WARM_UP, 1, 2 * (4 + 1), 3, 2
    runs_without_graph = warm_up + estimated + timed
    profiled = 1
    launches = len(on_fake_cuda.trace("cuLaunchKernel"))
    assert launches == 3 * (profiled + shapes * (runs_without_graph + captured))


def copies(runs: int) -> Any:
    stand_in_kernels.install()
    stand_in_card()
    bench(original(), models.chain(), runs=runs, rounds=1)


def few_runs() -> Any:
    copies(1)


def many_runs() -> Any:
    copies(9)


def test_nothing_is_copied_between_timed_runs(on_fake_cuda: FakeCuda) -> None:
    """Eight more runs of each session make no more copies: inputs and outputs stay on the device."""
    on_fake_cuda(few_runs)
    few = len(on_fake_cuda.trace("cudaMemcpyAsync"))
    on_fake_cuda(many_runs)
    assert len(on_fake_cuda.trace("cudaMemcpyAsync")) == 2 * few, "the trace holds both scenarios"


def with_a_node_on_the_cpu() -> Any:
    stand_in_card()
    made = onnx.parser.parse_model(
        f"{HEAD} g (float[N, 8, 8] x) => (float[N] y) {{ a = Relu (x)  d = Det (a)  y = Neg (d) }}"
    )
    return bench(made, made, runs=1, rounds=1).as_dict()


def test_a_cuda_graph_that_cannot_be_is_told(on_fake_cuda: FakeCuda) -> None:
    """A node without a CUDA kernel: no CUDA graph for either model, the reason is listed, the rest is timed."""
    facts = on_fake_cuda(with_a_node_on_the_cpu)
    (block,) = facts["blocks"]
    assert [(r["model"], r["setting"]) for r in block["rows"]] == [("original", "default"), ("fused", "default")]
    assert [(r["model"], r["setting"]) for r in block["refused"]] == [
        ("original", "CUDA graph"),
        ("fused", "CUDA graph"),
    ]
    assert all("graph" in r["reason"].lower() for r in block["refused"])
    assert facts["nodes"]["original"]["CPU"] == 1
