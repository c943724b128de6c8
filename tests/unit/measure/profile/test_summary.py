"""Times and bytes by kernel, by node and by run."""

import onnx
import pytest

from onnxfuse.measure.profile.kernels import TracedKernel
from onnxfuse.measure.profile.nodes import node_times
from onnxfuse.measure.profile.summary import kernel_rows, kinds, per_node, run_time, with_device_times
from onnxfuse.measure.profile.traffic import ModelTraffic, count
from tests.unit.measure.profile.test_kernels import kernel, ran


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
