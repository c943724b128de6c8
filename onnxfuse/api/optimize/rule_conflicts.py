"""Find where custom rules match but another rule matched first, for authors who may not know the order of rules."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.api.request.options import Progress
from onnxfuse.files import detached
from onnxfuse.rules.language import order
from onnxfuse.rules.language.rule_file import Rule, shipped_files
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.rules.pattern.pattern import chosen


@dataclass(frozen=True)
class RuleConflict:
    """A match of a rule alone that is lost when all rules apply."""

    rule: str
    nodes: tuple[str, ...]
    """The nodes that it takes alone, as "Op name"."""
    by: str
    """The rule that took some of them."""
    why: str
    """Why that rule was first, and what would change it."""


def rule_conflicts(
    report: OptimizeReport, rules: Sequence[Rule], way: OptimizePipeline, progress: Progress
) -> list[RuleConflict]:
    """Return the matches of custom rules applied alone of which other rules took nodes in `report`."""
    shipped, known = set(shipped_files().values()), {r.name: r for r in rules}
    found = []
    for one in rules:
        if one.path in shipped or len(rules) == 1:
            continue
        progress(f"{one.name} alone")
        patterns = [r.source for r in one.rewrites] + (
            [] if one.fuse is None else [a.pattern for a in one.fuse.anchors]
        )
        operators = {op for pattern in patterns for node in chosen(pattern).nodes for op in node.operators}
        with detached.detaching():
            alone = way.run(way.origin.fresh(), [one], lambda _: None)
        for applied in alone.applied:
            core = {n for n in applied.nodes if n.split()[0] in operators}  # fusions grown around it were lost with it
            taken = [a for a in report.applied if not core.isdisjoint(a.nodes)]
            if taken and all(a.rule != one.name for a in taken):
                why = order.why_first(known[taken[0].rule], one)
                found.append(RuleConflict(one.name, applied.nodes, taken[0].rule, f"{taken[0].rule} was first: {why}"))
    return found
