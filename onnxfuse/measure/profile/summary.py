"""Aggregate nodes and kernels of several runs into the rows of a report."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from onnxfuse.measure.profile.kernels import TracedKernel
from onnxfuse.measure.profile.nodes import NodeTime
from onnxfuse.measure.profile.report import KernelTime, KindTime, RunTime
from onnxfuse.measure.profile.traffic import ModelTraffic, NodeTraffic

Runs = Sequence[Sequence[TracedKernel]]


def with_device_times(nodes: Sequence[NodeTime], runs: Runs) -> tuple[NodeTime, ...]:
    """Return the nodes with the median microseconds per run of their kernels."""
    sums: dict[str, list[float]] = {}
    for run in runs:
        device_us: dict[str, float] = {}
        for kernel in run:
            device_us[kernel.node] = device_us.get(kernel.node, 0.0) + kernel.duration
        for name, us in device_us.items():
            sums.setdefault(name, []).append(us)
    return tuple(replace(n, device_us=float(np.median(sums.get(n.name, [0.0])))) for n in nodes)


def kinds(traffic: ModelTraffic, nodes: Sequence[NodeTime]) -> tuple[KindTime, ...]:
    """Return the nodes summed by kind, by descending time."""
    names = {n.op: n.kind for n in traffic.nodes}
    return _summed(traffic, nodes, lambda n: names.get(n.op, n.op))


def per_node(traffic: ModelTraffic, nodes: Sequence[NodeTime]) -> tuple[KindTime, ...]:
    """Return the single nodes by descending time, each by its name, with its kind."""
    names = {n.op: n.kind for n in traffic.nodes}
    return _summed(traffic, nodes, lambda n: f"{n.name} ({names.get(n.op, n.op)})")


def _summed(traffic: ModelTraffic, nodes: Sequence[NodeTime], key: Callable[[NodeTime], str]) -> tuple[KindTime, ...]:
    counted = {n.name: n for n in traffic.nodes}
    groups: dict[str, list[NodeTime]] = {}
    for node in nodes:
        groups.setdefault(key(node), []).append(node)
    rows = [
        KindTime(
            kind,
            sum(n.times for n in members),
            sum(n.us if n.device_us is None else n.device_us for n in members),
            sum(_bytes(n, counted.get(n.name)) for n in members),
        )
        for kind, members in groups.items()
    ]
    return tuple(sorted(rows, key=lambda r: -r.us))


def kernel_rows(traffic: ModelTraffic, runs: Runs) -> tuple[KernelTime, ...]:
    """Return the kernels summed by name, by descending time; counts are those of the last run, times medians."""
    last = runs[-1]
    counted = {n.name: n for n in traffic.nodes}
    launched: dict[str, set[str]] = {}
    for kernel in last:
        launched.setdefault(kernel.node, set()).add(kernel.name)
    total = float(np.median([sum(k.duration for k in run) for run in runs])) or 1.0
    rows = []
    for name in dict.fromkeys(k.name for k in last):
        same_name = [k for k in last if k.name == name]
        nodes = tuple(dict.fromkeys(k.node for k in same_name if k.node))
        us = _median_sum(runs, [{n for n, k in enumerate(run) if k.name == name} for run in runs])
        alone = (
            bool(nodes)
            and all(launched[n] == {name} and n in counted for n in nodes)
            and all(k.node for k in same_name)
        )
        rows.append(
            KernelTime(
                name,
                same_name[0].copy,
                len(same_name),
                us,
                us / total,
                float(np.median([_gap_before(run, name) for run in runs])),
                sum(counted[n].work.bytes for n in nodes) if alone else None,
                tuple(dict.fromkeys(counted[n].kind if n in counted else k.op for k in same_name if (n := k.node))),
                nodes,
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.us))


def run_time(runs: Runs) -> RunTime:
    """Return span and busy time of one run on the device."""
    spans = [max(k.end for k in run) - run[0].begin if run else 0.0 for run in runs]
    busy = [_busy(run) for run in runs]
    last = runs[-1]
    return RunTime(
        float(np.median(spans)),
        float(np.median(busy)),
        sum(not k.copy for k in last),
        sum(not k.node for k in last),
    )


def _bytes(node: NodeTime, counted: NodeTraffic | None) -> int:
    """Return the counted bytes of a node that ran unchanged, else those from ONNX Runtime's recorded shapes."""
    return counted.work.bytes if counted is not None and counted.op == node.op and not counted.work.note else node.bytes


def _median_sum(runs: Runs, chosen: Sequence[set[int]]) -> float:
    return float(np.median([sum(run[n].duration for n in indices) for run, indices in zip(runs, chosen, strict=True)]))


def _gap_before(run: Sequence[TracedKernel], name: str) -> float:
    gap, end = 0.0, None
    for kernel in run:
        if end is not None and kernel.name == name:
            gap += max(kernel.begin - end, 0.0)
        end = kernel.end if end is None else max(end, kernel.end)
    return gap


def _busy(run: Sequence[TracedKernel]) -> float:
    """Return the time in which at least one of the kernels runs."""
    total, end = 0.0, float("-inf")
    for kernel in run:
        total += max(kernel.end - max(kernel.begin, end), 0.0)
        end = max(end, kernel.end)
    return total
