"""Find where optional rules that were not requested would apply: tried where remaining nodes may start a match."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx

from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.files import detached
from onnxfuse.model.nested import nodes_of
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.support.progress import Steps


@dataclass(frozen=True)
class OptionalRuleMatch:
    """A match of an optional rule."""

    rule: str
    nodes: tuple[str, ...]
    """The nodes that it would take, as "Op name"."""
    when: str
    """When the rule is worth requesting."""


def optional_rule_matches(
    optimized: onnx.ModelProto,
    chosen: Sequence[Rule],
    available: Sequence[Rule],
    skipped: Collection[str],
    pipeline: OptimizePipeline,
    progress: Steps,
) -> list[OptionalRuleMatch]:
    """Return what each optional rule of `available` that is not `chosen` would match in addition.

    `optimized` is the result of the chosen rules: a rule is tried if some node of it may start a match.
    """
    names, remaining = {r.name for r in chosen}, {n.op_type for n in nodes_of(optimized.graph)}
    matches = []
    for rule in available:
        if not rule.optional or rule.name in names or rule.name in skipped or not _may_match(rule, remaining):
            continue
        progress(f"with {rule.name}")
        with detached.detaching():
            report = pipeline.run(pipeline.origin.fresh(), [*chosen, rule], lambda _: None)
        matches += [OptionalRuleMatch(rule.name, a.nodes, rule.optional) for a in report.applied if a.rule == rule.name]
    return matches


def _may_match(rule: Rule, remaining: Collection[str]) -> bool:
    """Return whether a rule may match at a node of these operators; a rule without patterns may match anywhere."""
    if rule.layout is not None or (rule.fuse is not None and not rule.fuse.anchors):
        return True
    roots = {op for r in rule.rewrites for op in r.source.root.operators}
    return not roots.union(() if rule.fuse is None else rule.fuse.roots).isdisjoint(remaining)
