"""Report what fuses in a model, what does not, and the node and reason at which each attempt stopped."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import onnx

from onnxfuse.api.deploy.compiling import PackInspection, inspect
from onnxfuse.api.optimize import tuning
from onnxfuse.api.optimize.lowering import PrecisionRecord, converted
from onnxfuse.api.optimize.optional_rules import OptionalRuleMatch, optional_rule_matches
from onnxfuse.api.optimize.rule_conflicts import RuleConflict, rule_conflicts
from onnxfuse.api.reasons import near_misses
from onnxfuse.api.reasons.near_misses import miss_text, reason
from onnxfuse.api.request.model_source import Model, Origin, path_or_proto
from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.api.request.options import Options, Progress, silent
from onnxfuse.api.rules import node_lookup
from onnxfuse.api.rules.node_lookup import Inside, RequestedNodes, Rows
from onnxfuse.files import detached, external, io
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.graph import lost_types
from onnxfuse.graph.graph import Node
from onnxfuse.graph.lost_types import Lost
from onnxfuse.model import custom_ops
from onnxfuse.model.nested import nodes_of
from onnxfuse.rules.language import pack
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.report import Near, OptimizeReport
from onnxfuse.rules.rewriting.every_graph import for_every_graph

if TYPE_CHECKING:
    from onnxfuse.tuning import Tuned


T = TypeVar("T")

Kind = tuple[str, str, str]
"""Row key of a table without names: the rule, its subject, and the reason."""


@dataclass(frozen=True)
class Explained:
    """What `optimize` would and would not do to a model."""

    report: OptimizeReport
    places: dict[str, RequestedNodes] = field(default_factory=dict)
    """The requested nodes, by the names that were given."""
    inside: Sequence[Inside] = ()
    """Fused ops that the given file already contains."""
    lost: Sequence[Lost] = ()
    """Where type information is lost."""
    outdone: Sequence[RuleConflict] = ()
    """Where custom rules match, but other rules matched first."""
    unasked: Sequence[OptionalRuleMatch] = ()
    """Where optional rules would apply that were not requested."""
    tuned: "Tuned | None" = None
    file: Path | None = None
    """Tuning file with the times; None if the model carries them."""
    pack: PackInspection | None = None
    """Coverage of the kernel pack next to the model, if there is one."""
    lowered: PrecisionRecord | None = None
    """How the model was converted to lower precision, or would be."""
    made: onnx.ModelProto | None = None
    """The optimized model, its large weights without their data."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data; with `places` only entries about these nodes, however little they say."""
        report, asked = self.report, {name for place in self.places.values() for name in place.nodes}
        applied = [a for a in report.applied if not asked or any(node_lookup.name_of(n) in asked for n in a.nodes)]
        of_places = [n for place in self.places.values() for n in node_lookup.attempts(report, place)]
        stopped = list(dict.fromkeys(of_places)) if self.places else near_misses.ranked(report)
        facts = {
            "ok": True,
            "nodes": {"before": report.before.total(), "after": report.after.total()},
            "notes": report.notes,
            "applied": [
                {
                    "rule": a.rule,
                    "op": a.op,
                    "nodes": list(a.nodes),
                    "stops": [{"node": s.node, "reason": s.reason} for s in a.stops],
                }
                for a in applied
            ],
            "near": near_misses.facts(stopped, report),
            "outdone": [
                {"rule": o.rule, "nodes": list(o.nodes), "by": o.by, "why": o.why}
                for o in self.outdone
                if not asked or any(node_lookup.name_of(n) in asked for n in o.nodes)
            ],
            "optional": [
                {"rule": u.rule, "nodes": list(u.nodes), "when": u.when}
                for u in self.unasked
                if not asked or any(node_lookup.name_of(n) in asked for n in u.nodes)
            ],
        }
        if self.pack is not None:
            facts["kernels"] = self.pack.as_dict()
        if self.lowered is not None:
            facts["precision"] = self.lowered.as_dict()
        return facts if self.tuned is None else {**facts, "tuning": tuning.facts(self.tuned, self.file)}

    def fused(self) -> Rows:
        """Return the fusions, grouped if equal: count, rule, nodes, the first one, why it grew no further."""
        kinds = _alike(((a.rule, node_lookup.operators(a.nodes), reason(a.stops[:1])), a) for a in self.report.applied)
        return [
            (str(len(found)), rule, what, found[0].nodes[0], found[0].stops[0].reason if found[0].stops else "")
            for (rule, what, _), found in kinds.items()
        ]

    def not_fused(self) -> Rows:
        """Return the attempts that stopped, grouped if equal: count, rule, start, first node that stopped it,
        reason."""
        nearest = sorted(self._open(near_misses.ranked(self.report)), key=lambda n: not near_misses.telling(n))
        return [
            (str(len(found)), rule, what, found[0].refusal.node, found[0].refusal.reason)
            for (rule, what, _), found in _alike((_kind(n), n) for n in nearest).items()
        ]

    def held(self) -> Rows:
        """Return the fused ops in the file, grouped if alike: count, rule, nodes, first one, kernel."""
        kinds = _alike(((o.rule, node_lookup.operators(o.came_from), o.template), o) for o in self.inside)
        return [(str(len(ops)), rule, what, ops[0].node, kernel) for (rule, what, kernel), ops in kinds.items()]

    def _open(self, near: Sequence[Near]) -> list[Near]:
        """Return the attempts that did not stop at fused ops of the file; about those the original says more."""
        fused = {o.op for o in self.inside}
        return [n for n in near if n.refusal.cause.seen not in fused]

    def first_taken(self, name: str = "") -> Rows:
        """Return where custom rules match but others matched first, grouped if equal: count, rule, nodes, the first
        one, reason; with `name` those at the nodes requested by it."""
        asked = self.places[name].nodes if name else frozenset()
        there = [o for o in self.outdone if not name or any(node_lookup.name_of(n) in asked for n in o.nodes)]
        kinds = _alike(((o.rule, node_lookup.operators(o.nodes), o.why), o) for o in there)
        return [(str(len(found)), rule, what, found[0].nodes[0], why) for (rule, what, why), found in kinds.items()]

    def optional(self, name: str = "") -> Rows:
        """Return where optional rules would apply that were not requested, grouped if equal: count, rule, nodes, the
        first one, how to request the rule and when that is worthwhile; with `name` those at the nodes requested by it.
        """
        asked = self.places[name].nodes if name else frozenset()
        there = [u for u in self.unasked if not name or any(node_lookup.name_of(n) in asked for n in u.nodes)]
        kinds = _alike(((u.rule, node_lookup.operators(u.nodes), u.when), u) for u in there)
        return [
            (str(len(found)), rule, what, found[0].nodes[0], f"--also {rule}: {when}")
            for (rule, what, when), found in kinds.items()
        ]

    def nearest(self, *, everything: bool) -> tuple[int, Rows]:
        """Return the number of near misses outside any fused op, and their kinds, nearest first.

        Of each: count, rule, matched part, first node that stopped it, reason and advice. Uninformative ones are
        omitted unless `everything` is set.
        """
        taken = near_misses.fused_nodes(self.report)
        near = [
            n
            for n in self._open(near_misses.ranked(self.report))
            if n.root not in taken and (everything or near_misses.telling(n))
        ]
        kinds = _alike((_kind(n), n) for n in near)
        found = sorted(kinds.values(), key=lambda ns: (ns[0].refusal.nearness, len(ns)), reverse=True)
        rows = [
            (str(len(ns)), ns[0].rule, node_lookup.matched(ns[0]), ns[0].refusal.node, miss_text(ns[0].refusal))
            for ns in found
        ]
        return len(near), [*rows]

    def cause(self, node: str) -> str:
        """Return in one line what happened to a node, or why it is unchanged: the first row of `at`."""
        asked = replace(self, places={node: RequestedNodes(frozenset((node,)))})
        took, rows = asked.at(node)
        if took:
            return took[0]
        if not rows:
            return "no rule begins at its operator"
        matched, rule, where, why = rows[0]
        part = f"{matched} matched, stopped at {where}" if matched[0].isdigit() else f"{matched} it"
        return f"{rule} ({part}): {why}"

    def at(self, name: str, *, everything: bool = False) -> tuple[list[str], Rows]:
        """Return what happened to the nodes requested by `name`, and the rules' furthest attempts that involved them.

        Of each attempt: matched part, rule, node that stopped it, reason and advice; nearest first.
        """
        place = self.places[name]
        now = [one.verdict for one in place.inside]
        took = node_lookup.took(self.report, place)
        if any(not one.given for one in place.inside):
            took = [f"without it, {what}" for what in took]
        return [*now, *took], node_lookup.rows(self.report, place, self.lost, everything=everything)


def explain(
    model: Model, options: Options | None = None, at: Sequence[str] = (), progress: Progress = silent
) -> Explained:
    """Return what `optimize` would do to the model, what it would not, and why; the model is not changed.

    Measurements decide, if there are any: from `options.tuning`, else those that the model carries. `at`: names of
    nodes or computed values to explain. Raises UsageError for an unknown name.
    """
    options = options or Options()
    with custom_ops.using(options.custom_ops):
        return _explain(model, options, at, progress)


def _explain(model: Model, options: Options, at: Sequence[str], progress: Progress) -> Explained:
    rules = options.chosen()
    origin, asked = Origin(path_or_proto(model), options.strict_fp32), options.tuning
    # Conversion to lower precision and measuring read every weight, planning a few.
    reads_all = options.precision is not None or (asked is not None and asked.measure)
    with contextlib.nullcontext() if reads_all else detached.detaching():
        ours = origin.fresh()
        origin, done = converted(ours, origin, options, rules, progress)
        inside = node_lookup.fused_ops_by_node(ours, {r.name for r in pack.select(options.rules)})
        found = tuning.carried(ours, rules, progress) if asked is None else tuning.find(ours, asked, rules, progress)
        if at:
            # Fused ops of the file are examined as the nodes that they replaced.
            unfuse(ours, node_lookup.undoable(ours))
        names = node_lookup.Names(ours, inside, origin.source)
        report, lost = _run(OptimizePipeline(origin, options.freeze_initializers, found), ours, rules, progress)
    compiled = inspect(Path(origin.source)) if isinstance(origin.source, str | Path) else None
    left = {Node(n).name for n in nodes_of(ours.graph)} if at else set()
    # Weights may be gigabytes: those of this model are let go before another one is loaded.
    made = io.without_weights(ours, external.without_data)
    del ours
    asked_for = {name: names.place(name, report, left) for name in at}
    way = OptimizePipeline(origin, options.freeze_initializers)
    others = rule_conflicts(report, rules, way, progress)
    more = (
        ()
        if options.only
        else optional_rule_matches(made, rules, pack.select(options.rules), options.skip, way, progress)
    )
    file = None if asked is None else asked.file
    return Explained(report, asked_for, inside, lost, others, more, found, file, compiled, done, made)


def _run(
    way: OptimizePipeline, model: onnx.ModelProto, rules: Sequence[Rule], progress: Progress
) -> tuple[OptimizeReport, list[Lost]]:
    """Optimize a model in place; return the report, and where type information is lost before any rule applies."""
    lost: list[Lost] = []

    def follow(phase: str) -> None:
        if phase == "rewrite":
            lost.extend(loss for of_graph in for_every_graph(model, lost_types.lost) for loss in of_graph)
        progress(phase)

    report = way.run(model, rules, follow)
    report.notes += [f"{loss.fact}: {loss.mend}" for loss in lost]
    return report, lost


def _alike(of_kinds: Iterable[tuple[Kind, T]]) -> dict[Kind, list[T]]:
    """Group items that differ in names only, preserving order."""
    found: dict[Kind, list[T]] = {}
    for kind, one in of_kinds:
        found.setdefault(kind, []).append(one)
    return found


def _kind(near: Near) -> Kind:
    return near.rule, near.root.split()[0], reason((near.refusal,))
