"""Format near misses: ranked, as plain data, with advice."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from onnxfuse.cuda import is_pointwise
from onnxfuse.model.display_names import MOVES
from onnxfuse.ops import Trait, named
from onnxfuse.rules.match.cause import CONDITIONS, SPELLINGS
from onnxfuse.rules.match.hint import hint, without_names
from onnxfuse.rules.match.match import Refusal
from onnxfuse.rules.match.report import Applied, Near, OptimizeReport
from onnxfuse.support.plurals import plural

MOVEMENT = MOVES | named(Trait.CARRIES, Trait.CARRIES_SOME)
"""Operators that move elements: many patterns of other operators contain one."""

ALREADY = re.compile(r"(\S+): already fused")
"""In a reason: the node beside the attempt that another fused op has."""

CONVERTED = re.compile(r"\.(?:b?float16|float32)\b")
"""In a name: the type that `precision` converted the node to, or from."""

WHYS = 3
"""Number of near misses reported for a lost fusion."""


def ranked(report: OptimizeReport) -> list[Near]:
    """Return the near misses ranked by how much the matched part of the pattern exceeds the missing part."""
    return sorted(_largest(report.near), key=lambda n: (*(-of for of in n.refusal.nearness), n.rule))


def _largest(misses: Sequence[Near]) -> list[Near]:
    """Drop the attempts that are part of a longer one of the same rule."""
    through: dict[tuple[str, str], list[frozenset[str]]] = {}
    for one in misses:
        nodes = frozenset(one.refusal.nodes)
        for node in nodes:
            through.setdefault((one.rule, node), []).append(nodes)
    return [
        one
        for one in misses
        if not (nodes := frozenset(one.refusal.nodes))
        or not any(nodes < other for other in through[one.rule, next(iter(nodes))])
    ]


def telling(miss: Near) -> bool:
    """Whether the attempt is informative: it matched more than one operator of the pattern, or one that computes more
    than an Add, and moves more than a Reshape or a Slice: a rule for convolutions says nothing of these without one."""
    r = miss.refusal
    op = miss.root.split()[0]
    one = r.size == 1 or (r.depth <= 1 and r.cause.kind in SPELLINGS)
    any_node = one and r.cause.kind in CONDITIONS | SPELLINGS and (is_pointwise(op) or op in MOVEMENT)
    return r.near and not r.far and not any_node


def miss_text(refusal: Refusal) -> str:
    """Return the reason, and the advice on a line of its own."""
    advice = hint(refusal.cause)
    return f"{refusal.reason}\n-> {advice}" if advice else refusal.reason


def reason(stops: Sequence[Refusal]) -> str:
    """Return why it stopped first, without names that differ from layer to layer."""
    return without_names(stops[0].reason) if stops else ""


def lost(report: OptimizeReport, name: str, places: Sequence[str] = ()) -> list[Near]:
    """Return where a rule stopped short, at most `WHYS` of them.

    `places` are the nodes, as "Op name", at which it began in an earlier model: attempts there, then those that reach
    these nodes. If there are none, nodes come first that nothing fused.
    """
    began = {a.root for a in report.applied if a.rule == name}
    gone = {place.partition(" ")[2] for place in places if place not in began}
    misses, fused = [n for n in ranked(report) if n.rule == name], fused_nodes(report)
    there = [n for n in misses if n.root.partition(" ")[2] in gone]
    there = there or [n for n in misses if gone & {n.refusal.node, *n.refusal.nodes}]
    return (there or sorted(misses, key=lambda n: n.root in fused))[:WHYS]


def taken(report: OptimizeReport, name: str, places: Sequence[str]) -> dict[str, Applied]:
    """Return the nodes at which a rule began in an earlier model, and which a fused op of another rule has now.

    A conversion to another precision gives nodes other names: it is disregarded.
    """
    began = {_as_exported(a.root) for a in report.applied if a.rule == name}
    took = {_as_exported(node): a for a in report.applied if a.op and a.rule != name for node in a.nodes}
    return {place: took[node] for place in places if (node := _as_exported(place)) in took and node not in began}


def _as_exported(node: str) -> str:
    """Return the name of a node without the type that it was converted to."""
    return CONVERTED.sub("", node)


def began_at(report: OptimizeReport, name: str, places: Sequence[str]) -> list[Near]:
    """Return the attempts of a rule that began at these nodes and stopped short, at most `WHYS` of them."""
    return [n for n in ranked(report) if n.rule == name and n.root in places][:WHYS]


def fused_beside(report: OptimizeReport, misses: Sequence[Near]) -> dict[str, Applied]:
    """Return the nodes for which attempts stopped because they were already fused, and the fused op of each."""
    names = {match[1] for n in misses for match in ALREADY.finditer(n.refusal.reason)}
    return {node: a for a in report.applied if a.op for node in a.nodes if node.partition(" ")[2] in names}


def why_taken(by: Mapping[str, Applied]) -> list[str]:
    """Return which rules took these nodes, a line for each rule with its first."""
    by_rule: dict[str, list[str]] = {}
    for place, applied in by.items():
        others = len(applied.nodes) - 1
        by_rule.setdefault(applied.rule, []).append(
            f"{place} with {plural(others, 'other node')}" if others else f"{place} alone"
        )
    return [
        f"{rule} took {places[0]}" + f" (and {len(places) - 1} more like it)" * (len(places) > 1)
        for rule, places in by_rule.items()
    ]


def why(misses: Sequence[Near]) -> list[str]:
    """Return where rules stopped short, a line for each attempt."""
    return [f"{n.rule} at {n.root}: stopped at {n.refusal.node}: {n.refusal.reason}" for n in misses]


def fused_nodes(report: OptimizeReport) -> frozenset[str]:
    """Return the nodes that any rule took, as "Op name"."""
    return frozenset(n for a in report.applied for n in a.nodes)


def facts(misses: list[Near], report: OptimizeReport) -> list[dict[str, Any]]:
    """Return misses as plain data for JSON."""
    fused = fused_nodes(report)
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
            "fused_otherwise": n.root in fused,
            "telling": telling(n),
        }
        for n in misses
    ]
