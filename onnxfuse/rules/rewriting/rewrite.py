"""The rewrite phase: apply every rewrite rule at every node until a fixed point."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from onnx import ModelProto

from onnxfuse.graph import graph_pass
from onnxfuse.graph.constant_folding import FEW
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.rules.language import order, predicate
from onnxfuse.rules.language.predicate import Binding, Predicate
from onnxfuse.rules.language.rule_file import Rewrite, Rule
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Match, Refusal, Trace, between, is_beaten, matches
from onnxfuse.rules.match.replace import instantiate
from onnxfuse.rules.match.report import Applied, Near, OptimizeReport, label, names
from onnxfuse.rules.pattern.pattern import Pattern
from onnxfuse.rules.rewriting import type_mismatch
from onnxfuse.rules.rewriting.attempts import Attempts
from onnxfuse.rules.rewriting.every_graph import LastRead, for_every_graph
from onnxfuse.support.errors import RuleError
from onnxfuse.support.plurals import plural

Simplify = Callable[[Graph], bool]
"""A built-in rewrite: changes the graph, and returns whether it did."""

MAX_ROUNDS = 50
"""Maximum rewrite rounds over the whole graph; models converge in three, so this many means that rules undo each
other.
"""

GROWTH = 4
ROOM = 200
"""Maximum growth of a graph, as a factor and an addition, before its rules count as divergent: a rule replaces a node
by a few nodes at most, and rules converge.
"""

BETWEEN = 4
"""Maximum extra nodes between those of a pattern, such as a mask, a cast, a scale."""

SEEN = 3
"""Number of repetitions of an earlier state after which a graph is in a cycle."""


def settle(
    model: ModelProto,
    simplify: Sequence[Simplify],
    rules: Sequence[Rule],
    report: OptimizeReport,
    last: Sequence[Simplify] = (),
    read: LastRead | None = None,
) -> None:
    """Rewrite to a fixed point; types of new values are inferred between rounds.

    `simplify` runs before the rules, as a folded shape can determine further types. Folding terminates: each fold
    removes a node. `last` runs once the rules make no more changes with all types known, and the rules continue if it
    changed anything; it must terminate, too. `read` is the main graph of an earlier phase. Raises RuleError for rules
    that do not converge.
    """
    rounds, of_main = 0, Attempts()

    def act(graph: Graph) -> bool:
        attempts = Attempts() if graph.parent is not None else of_main
        attempts.resume(graph)
        changed = rewrite(graph, simplify, rules, report, last, attempts)
        attempts.observe(graph)
        return changed

    while rounds < MAX_ROUNDS:
        before = len(report.applied)
        report.forget()
        if not any(for_every_graph(model, act, read)):
            return
        rounds += len(report.applied) > before
    raise endless(report.applied[before:], f"the graph still changes after {MAX_ROUNDS} rounds")


def rewrite(
    graph: Graph,
    simplify: Sequence[Simplify],
    rules: Sequence[Rule],
    report: OptimizeReport,
    last: Sequence[Simplify] = (),
    attempts: Attempts | None = None,
) -> bool:
    """Rewrite until nothing changes; return whether anything did, so that types can be inferred anew.

    If nothing did, `last` may change the graph. `attempts` are those of earlier calls for the same graph. Raises
    RuleError for rules that do not converge.
    """
    attempts = Attempts() if attempts is None else attempts
    rewrites = [(rule, one) for rule in order.rewriting(rules) for one in rule.rewrites]
    most = GROWTH * graph.size + ROOM
    states = Counter[bytes]()
    near: dict[tuple[str, Node], Refusal] = {}
    retried = False
    for turn in range(MAX_ROUNDS):
        changed, small = False, graph.size
        for act in simplify:
            changed |= act(graph)
        most += max(graph.size - small, 0)  # nodes inlined from a body do not count as growth
        # Dead shape computations, of targets that are constants now, would block rules as extra readers.
        changed |= bool(graph.eliminate_dead_code())
        if retried and not changed:  # the rules have reached a fixed point on this graph
            report.stopped += _listed(near)
            return True
        near = {}
        begun = indexed = len(report.applied)
        of_op = _by_op(graph)
        attempts.begin(graph)
        for number, (rule, one) in enumerate(rewrites):
            if len(report.applied) > indexed:
                of_op, indexed = _by_op(graph), len(report.applied)
            earlier = len(report.applied)
            for node in _at_root(of_op, one):
                if node.order < 0:
                    continue
                before = near.get((rule.name, node))
                search = partial(find, graph, one.source, one.where, node, before, one.about)
                nearness = None if before is None else before.nearness
                outcome: Match | Applied | Refusal | None = attempts.find(number, graph, node, search, nearness)
                if isinstance(outcome, Match):
                    outcome = _apply(graph, rule, one, outcome, attempts)
                if isinstance(outcome, Applied):
                    report.applied.append(replace(outcome, root=label(node)))
                    if graph.size > most:
                        raise endless(report.applied[begun:], f"the graph has grown to {plural(graph.nodes, 'node')}")
                elif isinstance(outcome, Refusal) and (nearness is None or outcome.nearness > nearness):
                    near[rule.name, node] = outcome  # among several spellings the furthest is the most informative
            if len(report.applied) > earlier:
                graph_pass.changed(rule, graph)
        retried = not graph.eliminate_dead_code() and len(report.applied) == begun
        if retried and not changed:
            report.stopped += _listed(near)
            return turn > 0 or any(act(graph) for act in last)
        report.earlier.update({(n.rule, n.root): n for n in _listed(near)})
        states[state := _state(graph)] += 1
        if states[state] == SEEN:
            raise endless(report.applied[begun:], "the graph goes in circles")
    raise endless(report.applied[begun:], f"the graph still changes after {MAX_ROUNDS} rounds")


def _at_root(of_op: Mapping[str, list[Node]], one: Rewrite) -> list[Node]:
    """Return the nodes that may be the root of a rewrite, in order."""
    of_each = [of_op[op] for op in one.source.root.operators if op in of_op]
    return of_each[0] if len(of_each) == 1 else sorted((n for nodes in of_each for n in nodes), key=lambda n: n.order)


def _by_op(graph: Graph) -> dict[str, list[Node]]:
    """Return the nodes of each operator, in order."""
    nodes: dict[str, list[Node]] = {}
    for node in graph.nodes:
        nodes.setdefault(node.op, []).append(node)
    return nodes


def endless(last: Sequence[Applied], fact: str) -> RuleError | AssertionError:
    """Return the error for rewrites that do not converge, given the most recent ones (none: a defect here)."""
    involved = list(dict.fromkeys(a.rule for a in last))
    if not involved:
        return AssertionError(f"built-in passes undo each other: {fact}")
    if len(involved) == 1:
        return RuleError(
            f"the rule '{involved[0]}' feeds itself: {fact}", "Let `where` refuse what the rule has written."
        )
    names = ", ".join(f"'{name}'" for name in involved)
    return RuleError(
        f"the rules {names} feed each other: {fact}", "Let `where` of one refuse what the other has written."
    )


def _state(graph: Graph) -> bytes:
    """Return a fingerprint of a graph: nodes and inputs, small constants by data, independent of value names."""
    numbers: dict[str, int] = {}
    digest = hashlib.sha256()
    for node in graph.nodes:
        read = [_token(graph, v, numbers) for v in node.inputs]
        for value in node.outputs:
            numbers[value] = len(numbers)
        attributes = [a.SerializeToString(deterministic=True) for a in node.proto.attribute]
        digest.update(repr((node.domain, node.op, read, attributes, list(map(bool, node.outputs)))).encode())
    return digest.digest()


def _token(graph: Graph, value: str, numbers: dict[str, int]) -> object:
    """Return the key of a value that a node reads."""
    if value in numbers:
        return numbers[value]
    count = graph.element_count(value)
    if count is None:
        return value
    array = graph.constant(value) if count <= FEW else None
    return (count,) if array is None else (array.dtype.str, array.shape, array.tobytes())


def _listed(near: Mapping[tuple[str, Node], Refusal]) -> list[Near]:
    """Return the furthest attempts of each rule at each root for the report."""
    return [Near(rule, label(node), refusal) for (rule, node), refusal in near.items()]


def _apply(graph: Graph, rule: Rule, rewrite: Rewrite, match: Match, attempts: Attempts) -> Applied | Refusal:
    bound = bind(rewrite.let, graph, match)
    new = instantiate(rewrite.target, graph, bound, rewrite.optional) if isinstance(bound, Match) else bound
    if isinstance(new, Refusal):
        return new
    old = match.replaced
    type_mismatch.check(graph, rule, old, new)
    graph.replace(old, new)
    attempts.changed([*old, *new])
    return Applied(rule.name, "", names(old))


def bind(let: Sequence[Binding], graph: Graph, match: Match) -> Match | Refusal:
    """Return `match` with the labels bound by `let` and its spellings, or a refusal if one has no value."""
    labels = dict(match.labels)
    for binding in (*let, *predicate.bound(match.pattern)):
        value = predicate.bind(binding, graph, match)
        if isinstance(value, Cause):
            return match.refusal(value)
        labels[binding.label] = value
    return replace(match, labels=labels)


def find(
    graph: Graph,
    pattern: Pattern,
    where: Sequence[Predicate],
    node: Node,
    previous: Refusal | None = None,
    about: Sequence[Predicate] = (),
) -> Match | Refusal | None:
    """Return the first match at `node` for which `about` and `where` hold; else the furthest refusal.

    Return None if nothing matched, if `about` holds for no match, or if the refusal would get no further than
    `previous`, that of another spelling at this node.
    """
    if previous is not None and is_beaten(pattern, graph, node, previous):
        return None
    trace, concerned, outcomes = Trace(), not about, predicate.Outcomes()
    for match in matches(pattern, graph, node, trace):
        conditions = (*about, *where, *predicate.spelling_conditions(match.pattern))
        if concerned and (most := outcomes.most(conditions, match)) < len(conditions) and trace.is_beaten(match, most):
            continue
        for passed, one in enumerate(conditions):
            failed = outcomes.holds(one, graph, match)
            if failed is not None:
                trace.stop(_owner(failed, match) or node, failed, match, whole=True, held=passed)
                concerned |= passed >= len(about)
                break
        else:
            return match
    furthest = between(graph, trace, previous) if concerned else None
    return None if furthest is None or trace.at is None else _with_rest(graph, furthest, trace.at)


def _owner(failed: Cause, match: Match) -> Node | None:
    """Return the node whose attribute a condition inspects, None for other conditions."""
    if "value(" not in failed.subject:
        return None
    words = set(re.findall(r"value\((\w+)\)", failed.subject))
    return next((n for wanted, n in match.nodes.items() if words.intersection(wanted.open.values())), None)


def _with_rest(graph: Graph, refusal: Refusal, stopped: Node) -> Refusal:
    """Return the refusal extended by the nodes that match the rest of the pattern, upstream of where it stopped."""
    if refusal.depth < 2 or not refusal.missing:
        return refusal
    matched, around, most = set(refusal.nodes), {refusal.node: None}, refusal.missing + BETWEEN
    waiting, seen = [stopped], {stopped.name}
    for node in waiting:
        for before in (p for v in node.inputs if v and (p := graph.producer(v)) is not None):
            if len(around) <= most and before.name not in seen:
                seen.add(before.name)
                waiting.append(before)
                if before.name not in matched:  # matched nodes are skipped: the rest is upstream of those, too
                    around[before.name] = None
    return refusal._replace(around=tuple(around))
