"""From CUPTI's records to kernels, from kernels to nodes, from both to the rows of a report."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import onnx
import pytest

from onnxfuse.measure.profile import cupti
from onnxfuse.measure.profile.cupti import Record, demangled, split
from onnxfuse.measure.profile.kernels import TracedKernel, follow, kernels_with_nodes
from onnxfuse.measure.profile.nodes import Ran, node_times, runs_of
from onnxfuse.measure.profile.summary import kernel_rows, kinds, per_node, run_time, with_device_times
from onnxfuse.measure.profile.traffic import ModelTraffic, count
from onnxfuse.support.errors import DeviceError
from tests.support import stand_in_cupti
from tests.support.stand_in_cupti import StandInCupti


@pytest.fixture
def binding() -> Iterator[StandInCupti]:
    """The stand-in in the package's place."""
    known = {name: sys.modules.get(name) for name in ("cupti", "cupti.cupti")}
    yield stand_in_cupti.install()
    for name, module in known.items():
        if module is None:
            del sys.modules[name]
        else:
            sys.modules[name] = module


def test_every_launch_of_every_run_is_seen(binding: StandInCupti) -> None:
    """Per run, in order; times by the system's clock; kernels with their shape, copies and fills as such."""
    zero = time.time_ns()

    def run() -> None:
        binding.launch("first", 2.5)
        binding.launch("copy", call="DRIVER")
        binding.launch("fill")

    runs = cupti.traced(run, 3, zero)
    assert [[k.name for k in kernels] for kernels in runs] == [["first", "copy", "fill"]] * 3
    first, copy, _ = runs[0]
    assert first.duration == 2.5
    assert (first.grid, first.block, first.registers, first.shared_bytes) == ((3, 2, 1), (128, 1, 1), 40, 1040)
    assert (first.copy, copy.copy) == (False, True)
    assert first.launched is not None
    assert first.begin - first.launched == pytest.approx(1.0)
    # The two clocks are 5 s apart; after the conversion the first launch lies in the time of this test.
    assert 0 <= first.launched < (time.time_ns() - zero) / 1e3
    assert not binding.enabled, "nothing goes on being traced"


def test_without_the_package_or_the_driver_it_is_said(monkeypatch: pytest.MonkeyPatch, binding: StandInCupti) -> None:
    """The reason in one line, and how to get it."""
    assert cupti.missing() is None

    def fails() -> int:
        raise RuntimeError("CUDA driver is not found")

    monkeypatch.setattr(binding, "get_timestamp", fails)
    assert cupti.missing() == "CUPTI does not start (CUDA driver is not found)"
    monkeypatch.setitem(sys.modules, "cupti.cupti", None)
    with pytest.raises(DeviceError, match="cupti-python is not installed") as raised:
        cupti.traced(lambda: None, 1, 0)
    assert raised.value.hint == "pip install 'onnxfuse[profile]'"


def test_another_profiler_is_no_traceback(binding: StandInCupti) -> None:
    """CUPTI serves one at a time."""
    binding.refuses = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
    with pytest.raises(DeviceError, match="MULTIPLE_SUBSCRIBERS"):
        cupti.traced(lambda: None, 1, 0)


def test_a_kernel_belongs_to_the_run_that_launched_it() -> None:
    """Not to the one that had begun when it ran; without a launch, to the one that it ran in."""
    records = [
        Record("RUNTIME", 90, 95, 1), Record("CONCURRENT_KERNEL", 210, 230, 1, "late"),
        Record("CONCURRENT_KERNEL", 250, 260, 2, "replayed"), Record("CONCURRENT_KERNEL", 10, 20, 3, "before"),
    ]  # fmt: skip
    runs = split(records, [50, 200], zero=0)
    assert [[k.name for k in run] for run in runs] == [["late"], ["replayed"]]
    assert runs[1][0].launched is None


def test_names_are_those_of_the_source() -> None:
    """C++ names are taken apart; names of C, and what is none, stay."""
    assert demangled("_Z10row_kernelPKfPfi") == "row_kernel(float const*, float*, int)"
    assert demangled("onnxfuse_row") == "onnxfuse_row"
    assert demangled("_Znonsense") == "_Znonsense"


def ran(name: str, begin: float, duration: float, op: str = "Relu") -> Ran:
    return Ran(name, op, "CUDA", begin, duration, 32)


def kernel(name: str, begin: float, duration: float, launched: float | None, **more: Any) -> TracedKernel:
    return TracedKernel(name, begin, duration, launched, **more)


def test_a_kernel_is_its_nodes_by_the_time_of_its_launch() -> None:
    """The device is late: what runs in the time of b was launched in that of a. Between nodes it is nobody's."""
    nodes = [ran("a", 10, 5), ran("b", 20, 5), ran("outer", 40, 20, "If"), ran("inner", 45, 5)]
    kernels = [
        kernel("k1", 21, 1, 12), kernel("k2", 23, 1, 24.5), kernel("lost", 35, 1, 32), kernel("k3", 60, 1, 47),
        kernel("k4", 61, 1, 55), kernel("graph", 80, 1, None),
    ]  # fmt: skip
    assert [k.node for k in kernels_with_nodes(kernels, nodes)] == ["a", "b", "", "inner", "outer", ""]


def named(*names: str) -> list[TracedKernel]:
    return [kernel(name, at, 1, None) for at, name in enumerate(names)]


def test_another_run_of_the_same_launches_is_followed() -> None:
    """A CUDA graph's kernels are those of the run before it in the same order; times are its own."""
    known = [kernel("p", 0, 1, 0, node="a", op="MatMul"), kernel("q", 2, 1, 1, node="b", op="Relu")]
    replayed = [kernel("p", 100, 1, None), kernel("q", 101, 1, None)]
    found = follow(replayed, known)
    assert found is not None
    assert [(k.begin, k.node, k.op) for k in found] == [(100, "a", "MatMul"), (101, "b", "Relu")]
    assert follow(named("q", "r"), known) is None
    assert follow([], known) is None


def test_another_kernel_for_one_node_does_not_lose_the_others() -> None:
    """A product may run as another kernel, or as two: they are the node's between its neighbours, if it is but one."""
    names = [f"k{n}" for n in range(8)]
    known = [kernel(name, at, 1, at, node=f"n{at}") for at, name in enumerate(names)]
    found = follow(named(*names[:3], "split", "sum", *names[4:]), known)
    assert found is not None
    assert [k.node for k in found] == ["n0", "n1", "n2", "n3", "n3", "n4", "n5", "n6", "n7"]
    first = follow(named("other", *names[1:]), known)
    assert first is not None
    assert first[0].node == "n0"
    unclear = follow(named(*names[:3], "one for two", *names[5:]), known)
    assert unclear is not None
    assert [k.node for k in unclear] == ["n0", "n1", "n2", "", "n5", "n6", "n7"]
    fewer = follow(named(*names[:3], *names[4:]), known)
    assert fewer is not None
    assert [k.node for k in fewer] == ["n0", "n1", "n2", "n4", "n5", "n6", "n7"]


def work() -> ModelTraffic:
    """Two nodes, a of 64 bytes and b of 64 bytes."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[8] x) => (float[8] y) { [a] h = Relu(x) [b] y = Neg(h) }'
    return count(onnx.parser.parse_model(text), {})


def two_runs() -> list[list[TracedKernel]]:
    """One run: p for a, q twice for b with a gap of 3 us and one of 1 us; the second run's p takes 4 us, not 2."""
    return [
        [
            kernel("p", at, p, at, node="a", op="Relu"), kernel("q", at + p + 3, 1, at, node="b", op="Neg"),
            kernel("q", at + p + 5, 1, at, node="b", op="Neg"),
        ]
        for at, p in ((0.0, 2.0), (100.0, 4.0))
    ]  # fmt: skip


def test_rows_of_kernels() -> None:
    """Count, time, share, the gaps before it, and bytes over time where a node launches this kernel alone."""
    rows = kernel_rows(work(), two_runs())
    assert [(r.name, r.count, r.us, r.gap_us, r.nodes, r.kinds) for r in rows] == [
        ("p", 1, 3.0, 0.0, ("a",), ("Relu",)), ("q", 2, 2.0, 4.0, ("b",), ("Neg",))
    ]  # fmt: skip
    assert rows[0].share == pytest.approx(3 / 5)
    assert rows[0].bandwidth == pytest.approx(64 / 3e-6)
    assert rows[1].bytes == 64, "both launches of q are b's, whose bytes they share"


def test_bytes_of_a_node_with_two_kernels_are_neithers() -> None:
    """No bandwidth is made up: which of the two moved them is not known."""
    run = [kernel("p", 0, 1, 0, node="a", op="Relu"), kernel("q", 2, 1, 1, node="a", op="Relu")]
    assert [r.bytes for r in kernel_rows(work(), [run])] == [None, None]


def test_the_time_of_a_run_is_work_and_gaps() -> None:
    """Kernels that overlap work once; copies are no launches."""
    run = [
        kernel("p", 0, 4, 0, node="a"), kernel("q", 2, 4, 1, node="b"), TracedKernel("copy", 10, 1, 2, copy=True)
    ]  # fmt: skip
    time_ = run_time([run])
    assert (time_.span, time_.busy, time_.idle, time_.launches, time_.unknown) == (11, 7, 4, 2, 1)
    assert run_time([[]]).span == 0


def test_time_per_node_is_that_of_its_kernels() -> None:
    """On the device, not of the host that launches; a node without kernels takes none."""
    nodes = node_times([[ran("a", 0, 50), ran("b", 60, 50, "Neg"), ran("c", 120, 50, "Reshape")]])
    timed = with_device_times(nodes, two_runs())
    assert [(n.name, n.us, n.device_us) for n in timed] == [("a", 50, 3.0), ("b", 50, 2.0), ("c", 50, 0.0)]
    assert [(k.kind, k.us, k.bytes) for k in kinds(work(), timed)] == [
        ("Relu", 3.0, 64), ("Neg", 2.0, 64), ("Reshape", 0.0, 32)
    ]  # fmt: skip
    assert [k.kind for k in per_node(work(), timed)] == ["a (Relu)", "b (Neg)", "c (Reshape)"]


def test_nodes_are_read_from_onnx_runtimes_profile() -> None:
    """Nodes of each run, by the time of the run; fences and the like are no nodes; in a loop a node runs often."""
    args = {"op_name": "Relu", "provider": "CPUExecutionProvider", "activation_size": "8", "output_size": "8"}
    events: list[dict[str, Any]] = [
        {"name": "model_run", "ts": 0, "dur": 50}, {"name": "model_run", "ts": 100, "dur": 50},
        *({"cat": "Node", "name": "a_kernel_time", "ts": t, "dur": 3, "args": args} for t in (5, 10, 105, 110)),
        {"cat": "Node", "name": "a_fence_before", "ts": 4, "dur": 0, "args": {"op_name": "Relu"}},
    ]  # fmt: skip
    runs = runs_of(events)
    assert [len(r) for r in runs] == [2, 2]
    (one,) = node_times(runs)
    assert (one.name, one.op, one.provider, one.us, one.bytes, one.times) == ("a", "Relu", "CPU", 6.0, 32, 2)
