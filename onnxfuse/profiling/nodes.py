"""Time per node, from ONNX Runtime's own profiler: of the nodes that really run, after its own optimization.

On CUDA these are times of the host, which only launches; what the device does is in `kernels.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime

from onnxfuse.profiling.bound import DeviceBinding, events_of

SUFFIX = "_kernel_time"
"""How ONNX Runtime names the event of a node that computes; waits and the like are other events."""

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Ran:
    """One node in one run."""

    name: str
    op: str
    """`op_type`: a fused op's own name, or an operator that ONNX Runtime made itself, such as BiasGelu."""
    provider: str
    begin: float
    """Microseconds from where the profile begins."""
    duration: float
    """Microseconds."""
    bytes: int
    """Each input once and each output once, from the shapes that ran."""


@dataclass(frozen=True)
class NodeTime:
    """One node over all runs."""

    name: str
    op: str
    provider: str
    us: float
    """Median microseconds of one run; on CUDA those of the host, which only launches."""
    bytes: int
    times: int
    """How often it runs in one run: more than once in a loop."""
    device_us: float | None = None
    """Median microseconds of its kernels in one run; None where kernels are not seen."""


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
    found = []
    for key, members in per_run[0].items():
        sums = [sum(r.duration for r in groups[key]) for groups in per_run if key in groups]
        first = members[0]
        size = sum(r.bytes for r in members)
        found.append(NodeTime(first.name, first.op, first.provider, float(np.median(sums)), size, len(members)))
    return tuple(found)


def profiled_runs(bound: DeviceBinding, warm_up: int, runs: int) -> list[list[Ran]]:
    """Return the nodes of `runs` runs after `warm_up` others; ends the profile of the session, which must have one."""
    for _ in range(warm_up + runs):
        bound.run()
    return finished(bound.session)[-runs:]


def finished(session: onnxruntime.InferenceSession) -> list[list[Ran]]:
    """Return the nodes of every run of a session that was opened with a profile, and end the profile."""
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
