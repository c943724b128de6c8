"""Operators remaining in the optimized model: their estimated costs, and why they were not fused."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

from onnxfuse.cuda import launch_bytes
from onnxfuse.measure.profile.estimated_costs import costs, dimensions, launches
from onnxfuse.measure.profile.traffic import NodeTraffic
from onnxfuse.model.fused import DOMAIN
from onnxfuse.rules.match import near_misses
from onnxfuse.rules.match.report import Near, OptimizeReport
from onnxfuse.support.errors import ModelError


@dataclass(frozen=True)
class RemainingOperator:
    """The remaining plain nodes of one operator."""

    op: str
    nodes: int
    launches: int
    """Number of them that launch a kernel; views and values computed from shapes do not."""
    bytes: int
    """Bytes read and written in one run."""
    share: float
    """Share of the estimated cost of the whole optimized model: bytes, plus the memory-traffic equivalent of each
    launch."""
    at: str
    """The one that moves the most bytes."""
    why: str
    """Why no rule took that one; empty if no rule came near."""


@dataclass(frozen=True)
class RemainingOps:
    """The remaining operators of an optimized model, most expensive first."""

    kinds: tuple[RemainingOperator, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Assumed sizes of dynamic dimensions."""
    note: str = ""
    """Why there is no estimate; empty if there is one."""

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain data for JSON."""
        kinds = [{**vars(k), "share": round(k.share, 4)} for k in self.kinds]
        return {"sizes": dict(self.sizes), "note": self.note, "kinds": kinds}


def operators(report: OptimizeReport) -> dict[str, tuple[int, int]]:
    """Return the node count of each operator before and after, most changed first; "fused" is one of them."""
    after = {op: n for op, n in report.after.items() if not op.startswith(f"{DOMAIN}:")}
    fused = [sum(n for op, n in of.items() if op.startswith(f"{DOMAIN}:")) for of in (report.before, report.after)]
    counts = {
        op: (report.before[op], after.get(op, 0)) for op in {*report.before, *after} if not op.startswith(f"{DOMAIN}:")
    }
    ordered = sorted(counts.items(), key=lambda one: (-abs(one[1][0] - one[1][1]), -one[1][0], one[0]))
    return {**({"fused": (fused[0], fused[1])} if any(fused) else {}), **dict(ordered)}


def remaining_ops(model: onnx.ModelProto, report: OptimizeReport) -> RemainingOps:
    """Return the operators remaining in the optimized `model`; costs are estimated from shapes, nothing is run."""
    try:
        counted = costs(model)
    except ModelError as error:
        return RemainingOps(sizes=dimensions(model), note=f"what is left cannot be estimated: {error}")
    reasons = _reasons(report, {n.label for n in counted.nodes})
    total = sum(_cost(n) for n in counted.nodes) or 1
    kinds: dict[str, list[NodeTraffic]] = {}
    for node in counted.nodes:
        if node.work.bytes and not node.nodes:
            kinds.setdefault(node.op, []).append(node)
    kinds_left = [_kind(op, nodes, total, reasons) for op, nodes in kinds.items()]
    return RemainingOps(tuple(sorted(kinds_left, key=lambda k: -k.share)), counted.sizes)


def _kind(op: str, nodes: list[NodeTraffic], total: int, reasons: Mapping[str, Near]) -> RemainingOperator:
    largest = max(nodes, key=_cost)
    attempt = reasons.get(largest.name)
    why = "" if attempt is None else f"{attempt.rule}: {attempt.refusal.reason}"
    return RemainingOperator(
        op,
        len(nodes),
        sum(launches(n) for n in nodes),
        sum(n.work.bytes for n in nodes),
        sum(_cost(n) for n in nodes) / total,
        largest.name,
        why,
    )


def _cost(node: NodeTraffic) -> int:
    return node.work.bytes + launch_bytes() * launches(node)


def _reasons(report: OptimizeReport, present: Collection[str]) -> dict[str, Near]:
    """Return the furthest attempt at each node, by its name; one whose root remains is preferred.

    `present` are the plain nodes of the result, as "Op name".
    """
    reasons: dict[str, Near] = {}

    def rank(attempt: Near) -> tuple[object, ...]:
        return attempt.root in present, *attempt.refusal.nearness

    for attempt in report.attempts():
        if near_misses.telling(attempt):
            for name in {attempt.root.partition(" ")[2], attempt.refusal.node, *attempt.refusal.nodes}:
                if name not in reasons or rank(attempt) > rank(reasons[name]):
                    reasons[name] = attempt
    return reasons
