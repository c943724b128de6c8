"""Operators remaining in the optimized model: their estimated costs, and why they were not fused."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from onnxfuse import ops
from onnxfuse.cuda import launch_bytes
from onnxfuse.graph.graph import Node
from onnxfuse.measure.profile.estimated_costs import Costs, costs, dimensions, launches
from onnxfuse.measure.profile.traffic import NodeTraffic
from onnxfuse.measure.profile.work import TrafficEstimate
from onnxfuse.model.fused import DOMAIN
from onnxfuse.rules.match import near_misses
from onnxfuse.rules.match.report import BY_NO_RULE, Near, OptimizeReport, fused_counts
from onnxfuse.support.errors import ModelError


@dataclass(frozen=True)
class RemainingOperator:
    """The remaining plain nodes that one reason keeps from being fused; those without a reason by operator."""

    operators: Mapping[str, int]
    """How many of them are of each operator, most expensive first."""
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
    """Why no rule took that one, and the others for the same reason; empty if no rule came near."""


@dataclass(frozen=True)
class RemainingOps:
    """The remaining operators of an optimized model, most expensive first."""

    kinds: tuple[RemainingOperator, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Assumed sizes of dynamic dimensions."""
    note: str = ""
    """Why there is no estimate; empty if there is one. Without it nodes are counted alone."""

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain data for JSON."""
        kinds = [{**vars(k), "operators": dict(k.operators), "share": round(k.share, 4)} for k in self.kinds]
        return {"sizes": dict(self.sizes), "note": self.note, "kinds": kinds}


def operators(report: OptimizeReport) -> dict[str, tuple[int, int]]:
    """Return the node count of each operator before and after, most changed first; "fused ops" is one of them."""
    after = {op: n for op, n in report.after.items() if not op.startswith(f"{DOMAIN}:")}
    fused = [fused_counts(of)[0] for of in (report.before, report.after)]
    counts = {
        op: (report.before[op], after.get(op, 0)) for op in {*report.before, *after} if not op.startswith(f"{DOMAIN}:")
    }
    ordered = sorted(counts.items(), key=lambda one: (-abs(one[1][0] - one[1][1]), -one[1][0], one[0]))
    return {**({"fused ops": (fused[0], fused[1])} if any(fused) else {}), **dict(ordered)}


def remaining_ops(
    model: onnx.ModelProto, report: OptimizeReport, attempts: Sequence[Near] | None = None
) -> RemainingOps:
    """Return the operators remaining in the optimized `model`, each node once; costs are estimated from shapes.

    Nothing is run. `attempts` has the reasons, by default all attempts of the report.
    """
    try:
        counted, note = costs(model), ""
    except ModelError as error:
        counted, note = Costs(_uncounted(model), {}, dimensions(model)), f"costs cannot be estimated: {error}"
    reasons = _reasons(report.attempts() if attempts is None else attempts, {n.label for n in counted.nodes})
    total = sum(_cost(n) for n in counted.nodes) or 1
    kinds: dict[tuple[str, str], list[NodeTraffic]] = {}
    for node in counted.nodes:
        if (node.work.bytes or note) and not node.nodes:
            attempt = reasons.get(node.name)
            kind = ("", node.op) if attempt is None else (attempt.rule, near_misses.reason((attempt.refusal,)))
            kinds.setdefault(kind, []).append(node)
    kinds_left = [_kind(nodes, total, reasons) for nodes in kinds.values()]
    return RemainingOps(tuple(sorted(kinds_left, key=lambda k: (-k.share, -k.nodes))), counted.sizes, note)


def _uncounted(model: onnx.ModelProto) -> tuple[NodeTraffic, ...]:
    """Return the plain nodes of the main graph that compute something, without any cost."""
    return tuple(
        NodeTraffic(Node(n).name, n.op_type, n.op_type, (), TrafficEstimate(0, 0, 0))
        for n in model.graph.node
        if n.domain != DOMAIN and n.op_type != ops.Constant
    )


def _kind(nodes: list[NodeTraffic], total: int, reasons: Mapping[str, Near]) -> RemainingOperator:
    largest = max(nodes, key=_cost)
    attempt = reasons.get(largest.name)
    why = ""
    if attempt is not None:
        where = "" if attempt.refusal.node == largest.name else f"stopped at {attempt.refusal.node}: "
        rule = "" if attempt.rule == BY_NO_RULE else f"{attempt.rule}: "
        why = f"{rule}{where}{attempt.refusal.reason}"
    return RemainingOperator(
        dict(Counter(n.op for n in sorted(nodes, key=lambda n: -_cost(n)))),
        len(nodes),
        sum(launches(n) for n in nodes),
        sum(n.work.bytes for n in nodes),
        sum(_cost(n) for n in nodes) / total,
        largest.name,
        why,
    )


def _cost(node: NodeTraffic) -> int:
    return node.work.bytes + launch_bytes() * launches(node)


def _reasons(attempts: Iterable[Near], present: Collection[str]) -> dict[str, Near]:
    """Return the furthest attempt at each node, by its name; one whose root remains is preferred.

    `present` are the plain nodes of the result, as "Op name".
    """
    reasons: dict[str, Near] = {}

    def rank(attempt: Near) -> tuple[object, ...]:
        return attempt.root in present, *attempt.refusal.nearness

    for attempt in attempts:
        if near_misses.telling(attempt):
            for name in {attempt.root.partition(" ")[2], attempt.refusal.node, *attempt.refusal.nodes}:
                if name not in reasons or rank(attempt) > rank(reasons[name]):
                    reasons[name] = attempt
    return reasons
