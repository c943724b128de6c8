"""Write one run of each model as a Chrome trace, for chrome://tracing, Perfetto, or any viewer of that format.

Times are microseconds from the first event of the run. Nodes are on the host; on CUDA, kernels are on the device.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxfuse.measure.profile.kernels import TracedKernel
from onnxfuse.measure.profile.nodes import Ran
from onnxfuse.measure.profile.report import ModelProfile, Profile

HOST, DEVICE = 1, 2
"""Thread rows of a model's events."""

Event = dict[str, Any]


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Return the trace; both models start at 0, as separate processes."""
    events: list[Event] = []
    for pid, (name, side) in enumerate(profile.sides.items(), start=1):
        nodes, kernels = side.example
        events.append(_meta("process_name", pid, 0, name))
        if nodes:
            events.append(_meta("thread_name", pid, HOST, "nodes" if not kernels else "nodes (host)"))
        if kernels:
            events.append(_meta("thread_name", pid, DEVICE, "kernels (device)"))
        events += _events(pid, side, nodes, kernels)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {**profile.environment, "summary": profile.summary},
    }


def _events(pid: int, side: ModelProfile, nodes: Sequence[Ran], kernels: Sequence[TracedKernel]) -> Iterator[Event]:
    zero = min([n.begin for n in nodes] + [k.begin for k in kernels], default=0.0)
    counted = {n.name: n for n in side.work.nodes}
    for node in nodes:
        node_traffic = counted.get(node.name)
        facts: dict[str, Any] = {"op": node.op, "provider": node.provider, "bytes": node.bytes}
        if node_traffic is not None and node_traffic.op == node.op:
            facts |= {"kind": node_traffic.kind, "bytes": node_traffic.work.bytes, "flops": node_traffic.work.flops}
        yield _event(pid, HOST, node.name, node.begin - zero, node.duration, facts)
    for kernel in kernels:
        facts = {
            "node": kernel.node, "op": kernel.op, "grid": kernel.grid, "block": kernel.block,
            "registers per thread": kernel.registers, "shared memory": kernel.shared_bytes,
        }  # fmt: skip
        arguments = {k: v for k, v in facts.items() if v not in (None, "", ())}
        yield _event(pid, DEVICE, kernel.name, kernel.begin - zero, kernel.duration, arguments)


def _event(pid: int, tid: int, name: str, begin: float, duration: float, facts: Mapping[str, Any]) -> Event:
    return {
        "ph": "X", "pid": pid, "tid": tid, "name": name, "ts": round(begin, 3), "dur": round(duration, 3),
        "args": dict(facts),
    }  # fmt: skip


def _meta(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}
