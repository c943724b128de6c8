"""Nodes and their times, as ONNX Runtime's profiler writes them."""

from typing import Any

from onnxfuse.measure.profile.nodes import node_times, runs_of


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
