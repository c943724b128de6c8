"""Rule precedence, independent of file names.

A user's own rules come first, then those of packs, then the shipped ones; within each group, higher `priority` first;
then fusions by template. Among the remaining rules a longer pattern comes first, and between equal lengths the one with
more growth steps; beyond that the order must not matter: where it does, set `priority`. A user's rule that replaces a
shipped one inherits its position.
"""

from collections.abc import Iterable, Sequence

from onnxfuse import cuda
from onnxfuse.cuda import Growth
from onnxfuse.rules.language.fuse_table import Fuse
from onnxfuse.rules.language.rule_file import Rule, shipped_files
from onnxfuse.support.plurals import plural


def rewriting(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules in the order in which their rewrites are tried at a node."""
    return sorted(rules, key=lambda one: (*_first(one), -_longest(one), _texts(one)))


def fusing(rules: Iterable[Rule]) -> list[tuple[Rule, Fuse]]:
    """Return the fusion rules in order of precedence."""
    pairs = [(rule, rule.fuse) for rule in rules if rule.fuse is not None]
    # Data movement before other pointwise work, which it absorbs; in the opposite order it would find less.
    return sorted(
        pairs,
        key=lambda rf: (
            *_first(rf[0]),
            cuda.TEMPLATES[rf[1].template].order,
            not rf[1].wants(Growth.MOVEMENT),
            -_longest(rf[0]),
            -len(rf[1].steps),
            _texts(rf[0]),
        ),
    )


def why_first(winner: Rule, loser: Rule) -> str:
    """Return why one rule precedes another, and how to reverse that."""
    skip = f"--skip {winner.name} leaves it out"
    if winner.rewrites and loser.fuse is not None and not loser.rewrites:
        return f"rewrites go before fusions; {skip}"
    mend = f"priority = {winner.priority + 1} in {loser.path.name} lets {loser.name} go first"
    (w_group, w_priority), (l_group, l_priority) = _first(winner), _first(loser)
    if w_group < l_group:
        groups = ("rules of one's own", "those of packs", "shipped ones")
        return f"{groups[w_group]} go before {groups[l_group]}; {skip}"
    if w_priority < l_priority:
        return f"its priority is {winner.priority}, that of {loser.name} {loser.priority}; {mend}"
    if winner.fuse is not None and loser.fuse is not None:
        first, second = (cuda.TEMPLATES[one.fuse.template] for one in (winner, loser) if one.fuse is not None)
        if first.order < second.order:
            return f"the template {first.name} goes before {second.name}; {mend}"
    if _longest(winner) > _longest(loser):
        return f"its pattern is longer, {plural(_longest(winner), 'node')} to {_longest(loser)}; {mend}"
    return f"they are alike in priority and length; {mend}"


def _first(one: Rule) -> tuple[int, int]:
    return 2 if one.name in shipped_files() else int(bool(one.pack)), -one.priority


def _longest(one: Rule) -> int:
    """Return the node count of a rule's longest pattern; for fusions, of its anchors."""
    if one.fuse is not None:
        return max((len(a.pattern.nodes) for a in one.fuse.anchors), default=0)
    return max((len(r.source.nodes) for r in one.rewrites), default=0)


def _texts(one: Rule) -> Sequence[str]:
    """Return a rule's patterns as a tie-breaker: otherwise equal rules need an order independent of names."""
    anchors = () if one.fuse is None else one.fuse.anchors
    return [*(r.source.text for r in one.rewrites), *(a.pattern.text for a in anchors)]
