"""Find where custom rules match but another rule matched first, for authors who may not know the order of rules."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.files import detached
from onnxfuse.rules.language import order
from onnxfuse.rules.language.rule_file import Rule, shipped_files
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.rules.pattern.pattern import chosen
from onnxfuse.support.progress import Steps


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
    report: OptimizeReport, rules: Sequence[Rule], pipeline: OptimizePipeline, progress: Steps
) -> list[RuleConflict]:
    """Return the matches of custom rules applied alone of which other rules took nodes in `report`."""
    shipped, by_name = set(shipped_files().values()), {r.name: r for r in rules}
    conflicts = []
    for rule in rules:
        if rule.path in shipped or len(rules) == 1:
            continue
        progress(f"{rule.name} alone")
        patterns = [r.source for r in rule.rewrites] + (
            [] if rule.fuse is None else [a.pattern for a in rule.fuse.anchors]
        )
        operators = {op for pattern in patterns for node in chosen(pattern).nodes for op in node.operators}
        with detached.detaching():
            alone = pipeline.run(pipeline.origin.fresh(), [rule], lambda _: None)
        for applied in alone.applied:
            core = {n for n in applied.nodes if n.split()[0] in operators}  # fusions grown around it were lost with it
            overlapping = [a for a in report.applied if not core.isdisjoint(a.nodes)]
            if overlapping and all(a.rule != rule.name for a in overlapping):
                why = order.why_first(by_name[overlapping[0].rule], rule)
                conflicts.append(
                    RuleConflict(
                        rule.name, applied.nodes, overlapping[0].rule, f"{overlapping[0].rule} was first: {why}"
                    )
                )
    return conflicts
