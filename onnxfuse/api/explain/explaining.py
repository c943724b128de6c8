"""What fuses in a model, what does not, and the node and the reason where each attempt stopped."""

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
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.graph import lost_types
from onnxfuse.graph.graph import Node
from onnxfuse.graph.lost_types import Lost
from onnxfuse.model import custom_ops
from onnxfuse.model.nested import nodes_of
from onnxfuse.rules.language import pack
from onnxfuse.rules.match.report import Near, OptimizeReport
from onnxfuse.rules.rewriting.every_graph import for_every_graph

if TYPE_CHECKING:
    from onnxfuse.tuning import Tuned


T = TypeVar("T")

Kind = tuple[str, str, str]
"""Of a table's row: the rule, what it is about, and why, without names."""


@dataclass(frozen=True)
class Explained:
    """What `optimize` would do to a model, and what it would not."""

    report: OptimizeReport
    places: dict[str, RequestedNodes] = field(default_factory=dict)
    """The nodes that were asked about, by the names that were given."""
    inside: Sequence[Inside] = ()
    """The fused ops that stand in the model as it came."""
    lost: Sequence[Lost] = ()
    """Where its types are lost."""
    outdone: Sequence[RuleConflict] = ()
    """Where rules of the user's own match, and others were first."""
    unasked: Sequence[OptionalRuleMatch] = ()
    """Where optional rules would apply that were not asked for."""
    tuned: "Tuned | None" = None
    file: Path | None = None
    """Where the times are; None where the model carries them."""
    pack: PackInspection | None = None
    """What the kernel pack beside the model covers, where there is one."""
    lowered: PrecisionRecord | None = None
    """How the model was converted to lower precision, or would be."""
    made: onnx.ModelProto | None = None
    """The optimized model."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data; with `places` only what is about these nodes, however little it tells."""
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
        """Return the fusions, equal ones as one row: how many, rule, nodes, the first, why it grew no further."""
        kinds = _alike(((a.rule, node_lookup.operators(a.nodes), reason(a.stops[:1])), a) for a in self.report.applied)
        return [
            (str(len(found)), rule, what, found[0].nodes[0], found[0].stops[0].reason if found[0].stops else "")
            for (rule, what, _), found in kinds.items()
        ]

    def not_fused(self) -> Rows:
        """Return the attempts that stopped, equal ones as one row: how many, rule, from, first stopped at, why."""
        nearest = sorted(self._open(near_misses.ranked(self.report)), key=lambda n: not near_misses.telling(n))
        return [
            (str(len(found)), rule, what, found[0].refusal.node, found[0].refusal.reason)
            for (rule, what, _), found in _alike((_kind(n), n) for n in nearest).items()
        ]

    def held(self) -> Rows:
        """Return the fused ops that stand in the file, alike ones as one row: how many, rule, nodes, first, kernel."""
        kinds = _alike(((o.rule, node_lookup.operators(o.came_from), o.template), o) for o in self.inside)
        return [(str(len(ops)), rule, what, ops[0].node, kernel) for (rule, what, kernel), ops in kinds.items()]

    def _open(self, near: Sequence[Near]) -> list[Near]:
        """Return the attempts that did not stop at what is fused in the file: of that the original tells more."""
        fused = {o.op for o in self.inside}
        return [n for n in near if n.refusal.cause.seen not in fused]

    def first_taken(self, name: str = "") -> Rows:
        """Return where rules of the user's own match and others were first, equal ones as one row: how many, rule,
        nodes, the first, why; with `name` those at the nodes that were asked for by it.
        """
        asked = self.places[name].nodes if name else frozenset()
        there = [o for o in self.outdone if not name or any(node_lookup.name_of(n) in asked for n in o.nodes)]
        kinds = _alike(((o.rule, node_lookup.operators(o.nodes), o.why), o) for o in there)
        return [(str(len(found)), rule, what, found[0].nodes[0], why) for (rule, what, why), found in kinds.items()]

    def optional(self, name: str = "") -> Rows:
        """Return where optional rules would apply that were not asked for, equal ones as one row: how many, rule,
        nodes, the first, how to ask for it and when that is worth it; with `name` those at the nodes asked for by it.
        """
        asked = self.places[name].nodes if name else frozenset()
        there = [u for u in self.unasked if not name or any(node_lookup.name_of(n) in asked for n in u.nodes)]
        kinds = _alike(((u.rule, node_lookup.operators(u.nodes), u.when), u) for u in there)
        return [
            (str(len(found)), rule, what, found[0].nodes[0], f"--also {rule}: {when}")
            for (rule, what, when), found in kinds.items()
        ]

    def nearest(self, *, everything: bool) -> tuple[int, Rows]:
        """Return how many places nearly fused and are in no fused op now, and the kinds of them, nearest first.

        Of each: how many, rule, matched, first stopped at, why and what would help. Those that tell little are left
        out unless `everything` is wanted.
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
        """Return in one line what became of a node, or why it is as it is: the first thing that `at` tells."""
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
        """Return what became of the nodes asked for by `name`, and the rules' furthest attempts that they had part in.

        Of each attempt: matched, rule, stopped at, why and what would help; nearest first.
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
    """Return what `optimize` would do to the model, what it would not, and why; the model is left as it is.

    What was measured decides: by `options.tuning`, else by what the model carries. `at`: names of nodes or computed
    values that are asked about. Raises UsageError for one that there is not.
    """
    options = options or Options()
    with custom_ops.using(options.custom_ops):
        return _explain(model, options, at, progress)


def _explain(model: Model, options: Options, at: Sequence[str], progress: Progress) -> Explained:
    rules = options.chosen()
    origin = Origin(path_or_proto(model), options.strict_fp32)
    ours = origin.fresh()
    origin, done = converted(ours, origin, options, rules, progress)
    inside = node_lookup.fused_ops_by_node(ours, {r.name for r in pack.select(options.rules)})
    asked = options.tuning
    found = tuning.carried(ours, rules, progress) if asked is None else tuning.find(ours, asked, rules, progress)
    if at:
        # What is fused in the file is asked about as the nodes that it was.
        unfuse(ours, node_lookup.undoable(ours))
    names = node_lookup.Names(ours, inside, origin.source)
    lost: list[Lost] = []

    def follow(phase: str) -> None:
        if phase == "rewrite":
            lost.extend(loss for of_graph in for_every_graph(ours, lost_types.lost) for loss in of_graph)
        progress(phase)

    report = OptimizePipeline(origin, options.freeze_initializers, found).run(ours, rules, follow)
    report.notes += [f"{loss.fact}: {loss.mend}" for loss in lost]
    compiled = inspect(Path(origin.source)) if isinstance(origin.source, str | Path) else None
    left = {Node(n).name for n in nodes_of(ours.graph)} if at else set()
    asked_for = {name: names.place(name, report, left) for name in at}
    way = OptimizePipeline(origin, options.freeze_initializers)
    others = rule_conflicts(report, rules, way, progress)
    more = (
        ()
        if options.only
        else optional_rule_matches(ours, rules, pack.select(options.rules), options.skip, way, progress)
    )
    file = None if asked is None else asked.file
    return Explained(report, asked_for, inside, lost, others, more, found, file, compiled, done, ours)


def _alike(of_kinds: Iterable[tuple[Kind, T]]) -> dict[Kind, list[T]]:
    """Return what differs in names alone together, in order."""
    found: dict[Kind, list[T]] = {}
    for kind, one in of_kinds:
        found.setdefault(kind, []).append(one)
    return found


def _kind(near: Near) -> Kind:
    return near.rule, near.root.split()[0], reason((near.refusal,))
