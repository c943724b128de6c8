"""Time per node from ONNX Runtime's own profiler, for the nodes after its own optimization.

On CUDA these are host times of launching; for device times see `kernels.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime

from onnxfuse.measure.timing.binding import DeviceBinding, events_of

SUFFIX = "_kernel_time"
"""Suffix of the events of computing nodes, as opposed to waits and the like."""

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Ran:
    """One execution of a node."""

    name: str
    op: str
    """`op_type`: a fused op's own name, or an operator created by ONNX Runtime, such as BiasGelu."""
    provider: str
    begin: float
    """Microseconds from the start of the profile."""
    duration: float
    """Microseconds."""
    bytes: int
    """Each input once and each output once, from the actual shapes."""


@dataclass(frozen=True)
class NodeTime:
    """One node over all runs."""

    name: str
    op: str
    provider: str
    us: float
    """Median microseconds per run; on CUDA those of the host, which only launches."""
    bytes: int
    times: int
    """Executions per run: more than one in a loop."""
    device_us: float | None = None
    """Median microseconds of its kernels per run; None if kernels are not traced."""


def runs_of(events: Sequence[Event]) -> list[list[Ran]]:
    """Return the nodes of each run in order, from the events of ONNX Runtime's profile."""
    runs = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("name") == "model_run"]
    nodes = sorted((e for e in events if _is_node(e)), key=lambda e: float(e["ts"]))
    return [[_ran(e) for e in nodes if begin <= e["ts"] <= end] for begin, end in runs]


def node_times(runs: Sequence[Sequence[Ran]]) -> tuple[NodeTime, ...]:
    """Return each node with its median time, in the order of the first run."""
    per_run: list[dict[tuple[str, str], list[Ran]]] = []
    for run in runs:
        groups: dict[tuple[str, str], list[Ran]] = {}
        for ran in run:
            groups.setdefault((ran.name, ran.op), []).append(ran)
        per_run.append(groups)
    times = []
    for key, members in per_run[0].items():
        sums = [sum(r.duration for r in groups[key]) for groups in per_run if key in groups]
        first = members[0]
        size = sum(r.bytes for r in members)
        times.append(NodeTime(first.name, first.op, first.provider, float(np.median(sums)), size, len(members)))
    return tuple(times)


def profiled_runs(bound: DeviceBinding, warm_up: int, runs: int) -> list[list[Ran]]:
    """Return the nodes of `runs` runs after `warm_up` others; ends the session's profile, which must be enabled."""
    for _ in range(warm_up + runs):
        bound.run()
    return finished(bound.session)[-runs:]


def finished(session: onnxruntime.InferenceSession) -> list[list[Ran]]:
    """Return the nodes of every run of a profiling session, and end its profile."""
    return runs_of(events_of(session))


def _is_node(event: Event) -> bool:
    return event.get("cat") == "Node" and event["name"].endswith(SUFFIX) and "op_name" in event["args"]


def _ran(event: Event) -> Ran:
    facts = event["args"]
    sizes = (facts.get(key, 0) for key in ("activation_size", "parameter_size", "output_size"))
    return Ran(
        event["name"].removesuffix(SUFFIX),
        facts["op_name"],
        facts.get("provider", "").removesuffix("ExecutionProvider"),
        event["ts"],
        event["dur"],
        sum(int(size) for size in sizes),
    )
