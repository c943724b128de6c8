"""The rewrite phase: apply every rewrite rule, everywhere, until nothing changes."""

from collections.abc import Sequence
from dataclasses import replace

from onnxfuse.model.errors import RuleError
from onnxfuse.model.fold import drop_identities, fold_constants, share_extents
from onnxfuse.model.graph import Graph, Node
from onnxfuse.rewrite import predicate
from onnxfuse.rewrite.masks import slim_masks
from onnxfuse.rewrite.match import Match, Refusal, Trace, matches
from onnxfuse.rewrite.pattern import Pattern
from onnxfuse.rewrite.predicate import Binding, Predicate
from onnxfuse.rewrite.replace import instantiate
from onnxfuse.rewrite.report import Applied, Near, Report, names
from onnxfuse.rewrite.rule import Rewrite, Rule
from onnxfuse.rewrite.targets import fix_targets

MAX_ROUNDS = 50
"""Rounds of rewriting over the whole graph; models settle in three, so this many means rules that undo each other."""


def rewrite(graph: Graph, rules: Sequence[Rule], report: Report) -> bool:
    """Rewrite until nothing changes; return whether anything did, so that types may be known that were not before."""
    rewrites = [(rule, one) for rule in rules for one in rule.rewrites]
    for turn in range(MAX_ROUNDS):
        near: dict[tuple[str, Node], Near] = {}
        changed = drop_identities(graph) | fold_constants(graph) | share_extents(graph) | fix_targets(graph)
        changed |= slim_masks(graph)
        for rule, one in rewrites:
            for node in [n for n in graph.nodes if n.op == one.source.root.op]:
                outcome = _apply(graph, rule, one, node) if node.order >= 0 else None
                if isinstance(outcome, Applied):
                    report.applied.append(outcome)
                    changed = True
                elif isinstance(outcome, Refusal):
                    _keep_furthest(near, rule.name, node, outcome)
        changed |= bool(graph.remove_dead())
        if not changed:
            report.stopped += near.values()
            return turn > 0
    raise endless([rule for rule, _ in rewrites])


def endless(rules: Sequence[Rule]) -> RuleError:
    """Return the error for rewrites that never settle."""
    involved = ", ".join(sorted({rule.name for rule in rules if rule.rewrites}))
    return RuleError(
        f"the rewrites go on after {MAX_ROUNDS} rounds ({involved})", "Do two of the rules undo each other?"
    )


def _keep_furthest(near: dict[tuple[str, Node], Near], rule: str, node: Node, refusal: Refusal) -> None:
    """A rule has several spellings; of all that were tried at one root, the one that got furthest tells most.

    Of two that got as far, what the rule asks for says more than a spelling that does not fit.
    """
    known = near.get((rule, node))
    if known is None or _told(refusal) > _told(known.refusal):
        near[rule, node] = Near(rule, f"{node.op} {node.name}", refusal)


def _told(refusal: Refusal) -> tuple[int, bool]:
    return refusal.depth, refusal.kind == "predicate"


def _apply(graph: Graph, rule: Rule, rewrite: Rewrite, node: Node) -> Applied | Refusal | None:
    match = find(graph, rewrite.source, rewrite.where, node)
    if not isinstance(match, Match):
        return match
    bound = bind(rewrite.let, graph, match)
    new = instantiate(rewrite.target, graph, bound, rewrite.optional) if isinstance(bound, Match) else bound
    if isinstance(new, Refusal):
        return new
    old = list(match.nodes.values())
    graph.replace(old, new)
    return Applied(rule.name, "", names(old))


def bind(let: Sequence[Binding], graph: Graph, match: Match) -> Match | Refusal:
    """Return `match` with the labels that `let` and its spellings bind, or the refusal of one without a value."""
    labels = dict(match.labels)
    for binding in (*let, *predicate.bound(match.pattern)):
        labels[binding.label] = value = predicate.bind(binding, graph, match)
        if isinstance(value, str):
            root, size = match.nodes[match.pattern.root], len(match.pattern.nodes)
            return Refusal(root.name, value, len(match.nodes), kind="predicate", subject=binding.text, size=size)
    return replace(match, labels=labels)


def find(graph: Graph, pattern: Pattern, where: Sequence[Predicate], node: Node) -> Match | Refusal | None:
    """Return the first match at `node` for which `where` holds; else the furthest refusal, None if nothing matched."""
    trace = Trace(sum(n.op != "Constant" for n in pattern.nodes))
    for match in matches(pattern, graph, node, trace):
        asked = (*where, *predicate.asked(match.pattern))
        failed = next(((p, r) for p in asked if (r := predicate.holds(p, graph, match)) is not None), None)
        if failed is None:
            return match
        stopped, reason = failed
        # What a rule leaves alone on purpose says more than a spelling that does not fit.
        depth = len(match.nodes) + bool(stopped.unless)
        trace.stop(node, reason, depth, kind="predicate", subject=stopped.text)
    return trace.furthest
