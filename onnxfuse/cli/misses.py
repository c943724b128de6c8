"""Near misses as the commands tell them: ranked, as plain data, with what would help."""

from typing import Any

from onnxfuse.kernels import is_pointwise
from onnxfuse.rewrite.match.hint import hint
from onnxfuse.rewrite.report import Near, Report


def ranked(report: Report) -> list[Near]:
    """Return the near misses, nearest first: fewest pattern nodes missing, then the bigger pattern."""
    return sorted(report.near, key=lambda n: (missing(n), -n.refusal.depth, n.rule))


def missing(near: Near) -> int:
    """Return how many nodes of the pattern were not matched."""
    return max(near.refusal.size - near.refusal.depth, 0)


def telling(near: Near) -> bool:
    """Whether it was near at all: more was there than one operator of the pattern, or than any Add or Mul."""
    r = near.refusal
    return not r.far and not (r.size == 1 and is_pointwise(near.root.split()[0]))


def fused_nodes(report: Report) -> frozenset[str]:
    """Return the nodes that some rule took, as "Op name"."""
    return frozenset(n for a in report.applied for n in a.nodes)


def facts(near: list[Near], report: Report) -> list[dict[str, Any]]:
    """Return misses as plain data for JSON."""
    taken = fused_nodes(report)
    return [
        {
            "rule": n.rule,
            "root": n.root,
            "node": n.refusal.node,
            "reason": n.refusal.reason,
            "depth": n.refusal.depth,
            "size": n.refusal.size,
            "kind": n.refusal.cause.kind,
            "subject": n.refusal.cause.subject,
            "seen": n.refusal.cause.seen,
            "wanted": n.refusal.cause.wanted,
            "hint": hint(n.refusal.cause),
            "fused_otherwise": n.root in taken,
            "telling": telling(n),
        }
        for n in near
    ]
