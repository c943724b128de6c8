"""Find where optional rules that were not requested would apply: tried where remaining nodes may start a match."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx

from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.api.request.options import Progress
from onnxfuse.files import detached
from onnxfuse.model.nested import nodes_of
from onnxfuse.rules.language.rule_file import Rule


@dataclass(frozen=True)
class OptionalRuleMatch:
    """A match of an optional rule."""

    rule: str
    nodes: tuple[str, ...]
    """The nodes that it would take, as "Op name"."""
    when: str
    """When the rule is worth requesting."""


def optional_rule_matches(
    made: onnx.ModelProto,
    chosen: Sequence[Rule],
    known: Sequence[Rule],
    skipped: Collection[str],
    way: OptimizePipeline,
    progress: Progress,
) -> list[OptionalRuleMatch]:
    """Return what each optional rule of `known` that is not `chosen` would match in addition.

    `made` is the result of the chosen rules: a rule is tried if some node of it may start a match.
    """
    names, left = {r.name for r in chosen}, {n.op_type for n in nodes_of(made.graph)}
    found = []
    for one in known:
        if not one.optional or one.name in names or one.name in skipped or not _may_begin(one, left):
            continue
        progress(f"with {one.name}")
        with detached.detaching():
            report = way.run(way.origin.fresh(), [*chosen, one], lambda _: None)
        found += [OptionalRuleMatch(one.name, a.nodes, one.optional) for a in report.applied if a.rule == one.name]
    return found


def _may_begin(one: Rule, left: Collection[str]) -> bool:
    """Return whether a rule may match at a node of these operators; a rule without patterns may match anywhere."""
    if one.layout is not None or (one.fuse is not None and not one.fuse.anchors):
        return True
    roots = {op for r in one.rewrites for op in r.source.root.operators}
    return not roots.union(() if one.fuse is None else one.fuse.roots).isdisjoint(left)
