"""Report what fuses in a model, what does not, and the node and reason at which each attempt stopped."""

import contextlib
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import onnx

from onnxfuse.api.optimize import tuning
from onnxfuse.api.optimize.lowering import PrecisionRecord, converted
from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.api.request.options import Options
from onnxfuse.api.request.origin import Origin
from onnxfuse.deploy.compiling import PackInspection, inspect
from onnxfuse.explanation import screen
from onnxfuse.explanation.optional_rules import OptionalRuleMatch, optional_rule_matches
from onnxfuse.explanation.quantized_products import QuantizedProducts, quantized_products
from onnxfuse.explanation.rule_conflicts import RuleConflict, rule_conflicts
from onnxfuse.files import detached, external, io
from onnxfuse.files.model_source import Model, path_or_proto
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.graph import lost_types
from onnxfuse.graph.graph import Node
from onnxfuse.graph.lost_types import Lost
from onnxfuse.measure.profile.remaining_ops import RemainingOps, remaining_ops
from onnxfuse.model import custom_ops, ledger
from onnxfuse.model.nested import nodes_of
from onnxfuse.rules.language import pack
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match import near_misses, node_lookup
from onnxfuse.rules.match.near_misses import miss_text, reason
from onnxfuse.rules.match.node_lookup import FusedNode, RequestedNodes, Rows, operators
from onnxfuse.rules.match.report import Applied, Near, OptimizeReport, fused_counts
from onnxfuse.rules.rewriting.every_graph import for_every_graph
from onnxfuse.support.plurals import fused_ops_text, plural
from onnxfuse.support.progress import Steps, silent
from onnxfuse.support.screen import LIMIT, Blocks, Screen

if TYPE_CHECKING:
    from onnxfuse.measure.tune import Tuned


T = TypeVar("T")
M = TypeVar("M", Applied, RuleConflict, OptionalRuleMatch)

Kind = tuple[str, str, str]
"""Row key of a table without names: the rule, its subject, and the reason."""


@dataclass(frozen=True, repr=False)
class Explained(Screen):
    """What `optimize` would and would not do to a model."""

    report: OptimizeReport
    requests: dict[str, RequestedNodes] = field(default_factory=dict)
    """The requested nodes, by the names that were given."""
    inside: Sequence[FusedNode] = ()
    """Fused ops that the given file already contains."""
    lost: Sequence[Lost] = ()
    """Where type information is lost."""
    conflicts: Sequence[RuleConflict] = ()
    """Where custom rules match, but other rules matched first."""
    optional_matches: Sequence[OptionalRuleMatch] = ()
    """Where optional rules would apply that were not requested."""
    tuned: "Tuned | None" = None
    file: Path | None = None
    """Tuning file with the times; None if the model carries them."""
    pack: PackInspection | None = None
    """Coverage of the kernel pack next to the model, if there is one."""
    made_by: str = ""
    """The version of onnxfuse that made the given file; empty if it does not say."""
    lowered: PrecisionRecord | None = None
    """How the model was converted to lower precision, or would be."""
    optimized: onnx.ModelProto | None = None
    """The optimized model, its large weights without their data."""

    @property
    def summary(self) -> str:
        """What the file holds or would hold, in one line: nodes before and after, and fused ops."""
        before = fused_counts(self.report.before)
        if not before[0]:
            return f"{'fuses' if self.report.applied else 'nothing to fuse'}: {self.report.verdict}"
        maker = f", made by onnxfuse {self.made_by}" if self.made_by else ""
        nodes = f"{plural(self.report.before.total(), 'node')}, including {fused_ops_text(*before)}{maker}"
        more = f"more would fuse: {self.report.verdict}" if self.report.applied else "nothing more to fuse"
        return f"already fused: {nodes}; {more}"

    @cached_property
    def remaining(self) -> RemainingOps:
        """The nodes that no rule took, most expensive first, with the reasons."""
        assert self.optimized is not None, "what `explain` returns has it"
        return remaining_ops(self.optimized, self.report, self._open(self.report.attempts()))

    @property
    def quantized(self) -> QuantizedProducts | None:
        """What became of the quantized products of the file; None if fused ops of it contain some of them already."""
        return None if self.inside else quantized_products(self.report)

    def screen(self, limit: int | None = LIMIT) -> Blocks:
        """Return what fuses and what does not, and why, up to `limit` rows of each table; with `requests` what happened
        to these nodes."""
        if not self.requests:
            return screen.whole_model(self, limit)
        return itertools.chain.from_iterable(screen.nodes(self, name, limit) for name in self.requests)

    def nearest_screen(self, limit: int | None = LIMIT) -> Blocks:
        """Return the near misses over the whole model."""
        return screen.nearest(self, limit)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data; with `requests` only entries about these nodes, however little they say."""
        report, nodes = self.report, {name for request in self.requests.values() for name in request.nodes}
        attempts = [n for request in self.requests.values() for n in node_lookup.attempts(report, request)]
        misses = list(dict.fromkeys(attempts)) if self.requests else near_misses.ranked(report)
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
                for a in _at(nodes, report.applied)
            ],
            "near": near_misses.facts(misses, report),
            "outdone": [
                {"rule": o.rule, "nodes": list(o.nodes), "by": o.by, "why": o.why} for o in _at(nodes, self.conflicts)
            ],
            "optional": [
                {"rule": u.rule, "nodes": list(u.nodes), "when": u.when} for u in _at(nodes, self.optional_matches)
            ],
        }
        if not self.requests and self.optimized is not None:
            facts["left"] = self.remaining.as_dict()
        if self.quantized is not None:
            facts["quantized"] = self.quantized.as_dict()
        if self.pack is not None:
            facts["kernels"] = self.pack.as_dict()
        if self.lowered is not None:
            facts["precision"] = self.lowered.as_dict()
        return facts if self.tuned is None else {**facts, "tuning": tuning.facts(self.tuned, self.file)}

    def fused(self) -> Rows:
        """Return the fusions, grouped if equal: count, rule, nodes, the first one, why it grew no further."""
        return _rows(
            ((a.rule, operators(a.nodes), reason(a.stops[:1])), a.nodes[0], a.stops[0].reason if a.stops else "")
            for a in self.report.applied
        )

    def fused_rows(self) -> Rows:
        """Return the fused ops in the file, grouped if alike: count, rule, nodes, first one, kernel."""
        return _rows(((o.rule, operators(o.original_nodes), o.template), o.node, o.template) for o in self.inside)

    def _open(self, attempts: Sequence[Near]) -> list[Near]:
        """Return the attempts that did not stop at fused ops of the file; about those the original says more."""
        fused = {o.op for o in self.inside}
        return [n for n in attempts if n.refusal.cause.seen not in fused]

    def conflict_rows(self, name: str = "") -> Rows:
        """Return where custom rules match but others matched first, grouped if equal: count, rule, nodes, the first
        one, reason; with `name` those at the nodes requested by it."""
        conflicts = _at(self._nodes(name), self.conflicts)
        return _rows(((o.rule, operators(o.nodes), o.why), o.nodes[0], o.why) for o in conflicts)

    def optional_rows(self, name: str = "") -> Rows:
        """Return where optional rules would apply that were not requested, grouped if equal: count, rule, nodes, the
        first one, how to request the rule and when that is worthwhile; with `name` those at the nodes requested by it.
        """
        matches = _at(self._nodes(name), self.optional_matches)
        return _rows(((u.rule, operators(u.nodes), u.when), u.nodes[0], f"--also {u.rule}: {u.when}") for u in matches)

    def _nodes(self, name: str) -> frozenset[str]:
        return self.requests[name].nodes if name else frozenset()

    def nearest(self, *, everything: bool) -> tuple[int, Rows]:
        """Return the number of near misses outside any fused op, and their kinds, nearest first.

        Of each: count, rule, matched part, first node that stopped it, reason and advice. Uninformative ones are
        omitted unless `everything` is set.
        """
        fused_nodes = near_misses.fused_nodes(self.report)
        attempts = [
            n
            for n in self._open(near_misses.ranked(self.report))
            if n.root not in fused_nodes and (everything or near_misses.telling(n))
        ]
        kinds = _group((_kind(n), n) for n in attempts)
        groups = sorted(kinds.values(), key=lambda ns: (ns[0].refusal.nearness, len(ns)), reverse=True)
        rows = [
            (str(len(ns)), ns[0].rule, node_lookup.matched(ns[0]), ns[0].refusal.node, miss_text(ns[0].refusal))
            for ns in groups
        ]
        return len(attempts), [*rows]

    def cause(self, node: str) -> str:
        """Return in one line what happened to a node, or why it is unchanged: the first row of `at`."""
        explained = replace(self, requests={node: RequestedNodes(frozenset((node,)))})
        events, rows = explained.at(node)
        if events:
            return events[0]
        if not rows:
            return "no rule starts at its operator"
        matched, rule, where, why = rows[0]
        part = f"{matched} matched, stopped at {where}" if matched[0].isdigit() else f"{matched} it"
        return f"{rule} ({part}): {why}"

    def at(self, name: str, *, everything: bool = False) -> tuple[list[str], Rows]:
        """Return what happened to the nodes requested by `name`, and the rules' furthest attempts that involved them.

        Of each attempt: matched part, rule, node that stopped it, reason and advice; nearest first.
        """
        request = self.requests[name]
        verdicts = [one.verdict for one in request.inside]
        events = node_lookup.took_nodes(self.report, request)
        if any(not one.is_available for one in request.inside):
            events = [f"without it, {what}" for what in events]
        events += quantized_products(self.report).at(request.nodes)
        return [*verdicts, *events], node_lookup.rows(self.report, request, self.lost, everything=everything)


def explain(
    model: Model, options: Options | None = None, at: Sequence[str] = (), progress: Steps = silent
) -> Explained:
    """Return what `optimize` would do to the model, what it would not, and why; the model is not changed.

    Measurements decide, if there are any: from `options.tuning`, else those that the model carries. `at`: names of
    nodes or computed values to explain. Raises UsageError for an unknown name.
    """
    options = options or Options()
    with custom_ops.using(options.custom_ops):
        return _explain(model, options, at, progress)


def _explain(model: Model, options: Options, at: Sequence[str], progress: Steps) -> Explained:
    rules = options.chosen()
    origin, measuring = Origin(path_or_proto(model), options.strict_fp32, options.shapes), options.tuning
    # Conversion to lower precision and measuring read every weight, planning a few.
    reads_all = options.precision is not None or (measuring is not None and measuring.measure)
    with contextlib.nullcontext() if reads_all else detached.detaching():
        ours = origin.fresh()
        origin, lowered = converted(ours, origin, options, rules, progress)
        record = ledger.read(ours)
        maker = "" if record is None else record.version
        inside = node_lookup.fused_ops_by_node(ours, {r.name for r in pack.select(options.rules)})
        tuned = (
            tuning.carried(ours, rules, progress)
            if measuring is None
            else tuning.find(ours, measuring, rules, progress)
        )
        if at:
            # Fused ops of the file are examined as the nodes that they replaced.
            unfuse(ours, node_lookup.undoable(ours))
        names = node_lookup.NodeNames(ours, inside, origin.source)
        pipeline = OptimizePipeline(origin, options.freeze_initializers, tuned)
        report, lost_here = _run(pipeline, ours, rules, progress)
    compiled = inspect(Path(origin.source)) if isinstance(origin.source, str | Path) else None
    remaining = {Node(n).name for n in nodes_of(ours.graph)} if at else set()
    # Weights may be gigabytes: those of this model are let go before another one is loaded.
    light = io.without_weights(ours, external.without_data)
    del ours
    asked_for = {name: names.find(name, report, remaining) for name in at}
    pipeline = OptimizePipeline(origin, options.freeze_initializers)
    conflicts = rule_conflicts(report, rules, pipeline, progress)
    optional = (
        ()
        if options.only
        else optional_rule_matches(light, rules, pack.select(options.rules), options.skip, pipeline, progress)
    )
    file = None if measuring is None else measuring.file
    return Explained(
        report, asked_for, inside, lost_here, conflicts, optional, tuned, file, compiled, maker, lowered, light
    )


def _run(
    pipeline: OptimizePipeline, model: onnx.ModelProto, rules: Sequence[Rule], progress: Steps
) -> tuple[OptimizeReport, list[Lost]]:
    """Optimize a model in place; return the report, and where type information is lost before any rule applies."""
    lost_values: list[Lost] = []

    def follow(phase: str) -> None:
        if phase == "rewrite":
            lost_values.extend(loss for of_graph in for_every_graph(model, lost_types.lost) for loss in of_graph)
        progress(phase)

    report = pipeline.run(model, rules, follow)
    report.notes += [f"{loss.fact}: {loss.mend}" for loss in lost_values]
    return report, lost_values


def _rows(entries: Iterable[tuple[Kind, str, str]]) -> Rows:
    """Return a row for each kind of entries (kind, node, text): count, rule, subject, first node and its text."""
    groups = _group((kind, (node, text)) for kind, node, text in entries)
    return [(str(len(group)), rule, subject, *group[0]) for (rule, subject, _), group in groups.items()]


def _at(nodes: Collection[str], matches: Iterable[M]) -> list[M]:
    """Return the matches that involve one of these nodes; all matches if no nodes are requested."""
    return [m for m in matches if not nodes or any(node_lookup.name_of(n) in nodes for n in m.nodes)]


def _group(of_kinds: Iterable[tuple[Kind, T]]) -> dict[Kind, list[T]]:
    """Group items that differ in names only, preserving order."""
    groups: dict[Kind, list[T]] = {}
    for kind, one in of_kinds:
        groups.setdefault(kind, []).append(one)
    return groups


def _kind(attempt: Near) -> Kind:
    return attempt.rule, attempt.root.split()[0], reason((attempt.refusal,))
